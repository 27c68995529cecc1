"""Looking inside federated runs: functions on weights, batches and runs that anybody can call on runs of their own.

rounds          a run taken up from its folder; a round with its local models; one client's training step by step
alignment       which class each neuron prefers, and how many neurons of two models agree
divergence      how far local weights move, against how far a client's classes are from the global model's
diversity       gradient diversity, definition 2, and what proposition 1 says of it
distillation    the divergence of two models' answers, split into true and not-true classes (proposition 2)
minimax         the most robust distribution to start from (proposition 3)
landscape       loss under noise, the Hessian's largest eigenvalues, the loss over a plane
features        features on the circle, and t-SNE of features
"""
