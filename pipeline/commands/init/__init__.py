"""Start a project: look at a folder of images, propose parameters for it, and write the project's files."""
