"""The encoders (flax linen) and the dual encoder made of them (plain JAX on a pytree of parameters)."""
