package track

import "net/netip"

// Signal is an ADD_ADDR, REMOVE_ADDR or MP_PRIO.
type Signal struct {
	At      float64     `json:"at"`
	Kind    string      `json:"kind"`
	From    string      `json:"from"`
	IDs     []int       `json:"address_ids"`
	Address *netip.Addr `json:"address,omitempty"`
	Port    uint16      `json:"port,omitempty"`
	Backup  bool        `json:"backup,omitempty"`
	HMAC    string      `json:"hmac,omitempty"`
	Echo    *float64    `json:"echo_delay,omitempty"`
	Repeats int         `json:"repeats"`
	Subflow *int        `json:"subflow,omitempty"` // of MP_PRIO: whose priority changes
	// What followed: joins to the address, subflows that ended, new data on the subflow.
	Followed int      `json:"followed"`
	Delay    *float64 `json:"followed_delay,omitempty"`
	Data     uint64   `json:"data_after,omitempty"`
}

func (g *signal) record(c *connection) Signal {
	r := Signal{At: seconds(g.at - c.first), Kind: g.kind, From: g.from.String(), Backup: g.backup, Repeats: g.repeats, Port: g.port}
	for _, id := range g.ids {
		r.IDs = append(r.IDs, int(id))
	}
	r.HMAC = [...]string{"", "verified", "wrong"}[g.hmac]
	if g.address.IsValid() {
		r.Address = &g.address
	}
	if g.echoed != 0 {
		r.Echo = pointer(seconds(g.echoed - g.at))
	}
	var delay int64 = -1
	for _, s := range c.subflows {
		switch g.kind {
		case AddAddr:
			if s.join && s.syn >= g.at && (g.over == 0 || s.syn < g.over) && s.opener == g.from.other() && Addr(s.address[g.from]) == g.address && (g.port == 0 || s.port[g.from] == g.port) {
				r.Followed++
				if delay < 0 {
					delay = s.syn - g.at
				}
			}
		case RemoveAddr:
			if s.removed == g.at && s.end != open {
				r.Followed++
				delay = max(delay, s.endTime-g.at)
			}
		}
	}
	if g.kind == Priority {
		r.Data, r.Subflow = g.on.data()-g.data, pointer(g.on.index)
	}
	if delay >= 0 {
		r.Delay = pointer(seconds(delay))
	}
	return r
}
