package emulink

import (
	"fmt"
	"time"
)

// Radio describes the radio of a mobile device at an end of a link. Both directions use it. It is off until a packet
// comes, and then needs the time Wake before it carries packets. After the time Sleep without packets, it uses less power
// but still carries packets at once. After another Sleep, it is off.
//
// Only TCP uses the radio, because multicasts of hosts and routers would keep it on. The states are IDLE, CELL_DCH and
// CELL_FACH of UMTS (Detal 2014, 2.2.1). The model ignores that the second timer differs between networks, and that
// CELL_FACH has a lower rate. The zero Radio is always on.
type Radio struct {
	Wake, Sleep time.Duration
	Power, Low  float64 // mW: while it wakes up and is on, and before it is off
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

// radio is the state of a Radio. Times are in nanoseconds since any epoch, and never decrease.
type radio struct {
	Radio
	used   bool
	last   int64   // when it last carried a packet, or will carry the one that woke it
	until  int64   // energy is counted until then
	energy float64 // mW ns, since the start or the last reset
}

// isTCP reports whether an IP packet contains TCP. It returns false for IPv6 packets with extension headers.
func isTCP(packet []byte) bool {
	const protocol4, protocol6, tcp = 9, 6, 6
	return len(packet) > protocol4 && (packet[0]>>4 == 4 && packet[protocol4] == tcp || packet[0]>>4 == 6 && packet[protocol6] == tcp)
}

// use returns the time at which the radio carries a packet that comes now.
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

// count adds the energy used until now.
func (r *radio) count(now int64) {
	if r.used {
		low, off := r.last+int64(r.Sleep), r.last+2*int64(r.Sleep)
		r.energy += r.Power*float64(max(0, min(now, low)-r.until)) + r.Low*float64(max(0, min(now, off)-max(r.until, low)))
	}
	r.until = now
}

// joules returns the energy used until now.
func (r *radio) joules(now int64) float64 {
	r.count(now)
	return r.energy / 1e3 / float64(time.Second)
}
