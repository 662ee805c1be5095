"""Events from a dispatch mode over CPU or fake tensors."""
