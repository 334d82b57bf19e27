"""Where learning happens: in this process, in threads beside collecting, in processes of its own."""
