"""Where the samples are. Flower sends this file to all sites, and each calls `training_samples` on its own machine."""

from fedntd import Config
from fedntd.flower.client_app import client_app
from fedntd.flower.server_app import server_app
from fedntd.flower.site import Samples, Site, dealt, held_out


def training_samples(site: Site) -> Samples:
    """What this site trains on. It never leaves the site.

    For trying things out, each site takes its share of images that come with fedntd. With data of your own, read it
    from where this site has it: what stands in the site's --node-config is in `site.node`, such as site.node["data"].
    """
    return dealt(site)


def test_samples(config: Config) -> Samples | None:
    """What the coordinator tests on; None if it has nothing: then the sites test on their own held-out samples."""
    return held_out(config)


client = client_app(training_samples)
server = server_app(test_samples)
