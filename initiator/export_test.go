package initiator

import "time"

// SetBackoff shortens the pauses between attempts to log in again.
func (c *Config) SetBackoff(first, most time.Duration) { c.firstRetry, c.maxRetry = first, most }

// ChildMain, set by the tests against real targets, makes this binary a target
// when it has been started as one.
var ChildMain func() bool
