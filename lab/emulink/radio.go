package emulink

import (
	"fmt"
	"time"
)

// Radio describes the radio of a mobile device at an end of a link, which both directions use. It is off until a packet
// comes, and then needs Wake until it carries anything. When nothing came for Sleep, it uses less power, but carries at
// once; after as long again it is off. Only TCP uses it: what hosts and
// routers multicast now and then would keep it on. These are the states IDLE, CELL_DCH and CELL_FACH of UMTS (Detal 2014, 2.2.1), where
// the second timer differs between networks, and the lower rate of CELL_FACH is left out. The zero value is always on.
type Radio struct {
	Wake, Sleep time.Duration
	Power, Low  float64 // mW: waking up and on, and before it is off
}

const maxPower = 1e6 // mW

// Validate returns an error for the first value out of range.
func (r Radio) Validate() error {
	switch {
	case r == Radio{}:
		return nil
	case r.Wake < 0 || r.Wake > maxDelay:
		return fmt.Errorf("the radio wakes up in %v: use 0 to %v", r.Wake, maxDelay)
	case r.Sleep <= 0 || r.Sleep > maxDelay:
		return fmt.Errorf("the radio sleeps after %v: use more than 0, and at most %v", r.Sleep, maxDelay)
	case !(r.Power >= 0 && r.Power <= maxPower && r.Low >= 0 && r.Low <= maxPower):
		return fmt.Errorf("the radio's power of %v and %v mW is out of range: use 0 to %v", r.Power, r.Low, float64(maxPower))
	}
	return nil
}

// radio is a Radio in use. Times are in nanoseconds since any epoch, and never decrease.
type radio struct {
	Radio
	used   bool
	last   int64   // when it last carried, or will when it is awake
	until  int64   // energy is counted until then
	energy float64 // mW ns, since the start or the last reset
}

// isTCP reports whether an IP packet is of TCP. An IPv6 packet with extension headers is not.
func isTCP(packet []byte) bool {
	const protocol4, protocol6, tcp = 9, 6, 6
	return len(packet) > protocol4 && (packet[0]>>4 == 4 && packet[protocol4] == tcp || packet[0]>>4 == 6 && packet[protocol6] == tcp)
}

// use returns when the radio carries a packet that comes now.
func (r *radio) use(now int64) int64 {
	r.count(now)
	switch {
	case !r.used || now-r.last >= 2*int64(r.Sleep):
		r.used, r.last = true, now+int64(r.Wake)
	case now > r.last:
		r.last = now
	}
	return r.last
}

// count counts the energy until now.
func (r *radio) count(now int64) {
	if r.used {
		low, off := r.last+int64(r.Sleep), r.last+2*int64(r.Sleep)
		r.energy += r.Power*float64(max(0, min(now, low)-r.until)) + r.Low*float64(max(0, min(now, off)-max(r.until, low)))
	}
	r.until = now
}

// joules returns the energy until now.
func (r *radio) joules(now int64) float64 {
	r.count(now)
	return r.energy / 1e3 / float64(time.Second)
}
