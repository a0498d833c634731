"""What a run would need and reach: chips, FLOPs, compiled programs of devices that are not there."""
