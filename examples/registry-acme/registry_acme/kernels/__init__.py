"""The implementations, one file a family. They stand apart from the contracts: a changed kernel changes no contract."""
