package path

// The delay threshold of V.-H. Tran's thesis (2019, section 6.3): a connection whose path is short needs no second one.
// A round trip is that of data that this host sent. The one that a receiver estimates includes pauses of the sender.

// measureDistance counts the samples in which every subflow's round trip exceeds the one that the rule wants. The connection
// has its growth recorded.
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
