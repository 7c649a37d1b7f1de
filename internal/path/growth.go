package path

import "time"

// growth records the traffic of a connection whose further subflows wait for more of it (Rule.Start).
type growth struct {
	latest time.Time // when the further subflows open at the latest; zero: no limit
	before reading   // bytes carried, at the last complete sample
	slow   time.Time // when it began to move data more slowly than Start.Below; zero: it does not
	far    int       // consecutive samples in which its round trip exceeded Start.AboveRTT
}

// reading is the value of a counter at a time.
type reading struct {
	at    time.Time
	bytes uint64
}

// rate returns the bits a second since the reading, and the time since then. total is the counter's value now.
func (r reading) rate(total uint64, now time.Time) (rate float64, over time.Duration) {
	if over = now.Sub(r.at); over <= 0 {
		return 0, 0
	}
	return 8 * float64(total-r.bytes) / over.Seconds(), over
}

// delayed records whether further subflows wait for more traffic. latest is when they open at the latest.
func (c *conn) delayed(waits bool, latest time.Time) {
	switch {
	case !waits:
		c.growth = nil
		return
	case c.growth == nil:
		c.growth = &growth{}
	}
	c.growth.latest = latest
}

// start looks again at the connections whose further subflows wait. It runs after complete samples.
func (m *Manager) start(now time.Time) {
	for _, c := range m.conns.where(func(c *conn) bool { return c.growth != nil }) {
		g := c.growth
		last := g.before
		g.before = reading{now, c.carried}
		if below := c.rule.Start.Below; below > 0 && !last.at.IsZero() {
			moved := float64(c.carried - last.bytes)
			switch slow := moved > 0 && moved < below*now.Sub(last.at).Seconds(); {
			case !slow:
				g.slow = time.Time{}
			case g.slow.IsZero():
				g.slow = last.at
			}
		}
		c.measureDistance()
		m.step(m.turn(c, now))
	}
}
