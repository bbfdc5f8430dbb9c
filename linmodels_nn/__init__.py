"""Neural networks as linear models: built on the public names of `linmodels` alone."""
