"""Load the samples. Flower sends this file to all sites, and each calls `training_samples` on its own machine."""

from fedntd import Config
from fedntd.flower.client_app import client_app
from fedntd.flower.server_app import server_app
from fedntd.flower.site import Samples, Site, dealt, held_out


def training_samples(site: Site) -> Samples:
    """This site's training samples. They never leave the site.

    As written, each site takes its share of the images that come with fedntd, for a trial. Replace this with code that
    reads this site's own data. `site.node` holds the site's --node-config, such as site.node["data"].
    """
    return dealt(site)


def test_samples(config: Config) -> Samples | None:
    """The coordinator's test samples. If it returns None, the sites test on their own held-out samples."""
    return held_out(config)


client = client_app(training_samples)
server = server_app(test_samples)
