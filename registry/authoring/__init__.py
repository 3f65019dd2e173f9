"""New packages of plugins, made from the templates beside this file."""
