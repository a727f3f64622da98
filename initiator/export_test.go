package initiator

import "time"

// SetBackoff shortens the pauses between attempts to log in again.
func (c *Config) SetBackoff(first, most time.Duration) { c.firstRetry, c.maxRetry = first, most }
