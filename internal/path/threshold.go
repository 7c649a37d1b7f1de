package path

// This file implements the delay threshold of V.-H. Tran's thesis (2019, section 6.3): a connection whose path is
// short needs no second one. Only round trips of data that this host sent count, because those that a receiver
// estimates include pauses of the sender.

// measureDistance counts the consecutive samples in which every known round trip of the connection's subflows exceeds
// Start.AboveRTT. c.growth must be set.
func (c *conn) measureDistance() {
	bound := c.rule.Start.AboveRTT
	if bound == 0 {
		return
	}
	known, near := false, false
	for _, s := range c.subflows {
		if s.up && s.rtt > 0 {
			known, near = true, near || s.rtt <= bound
		}
	}
	switch {
	case !known || near:
		c.growth.far = 0
	default:
		c.growth.far++
	}
}
