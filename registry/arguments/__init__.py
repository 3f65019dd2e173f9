"""A call's arguments: the schema that names them, their specs and traits, and the specs of a problem's inputs."""
