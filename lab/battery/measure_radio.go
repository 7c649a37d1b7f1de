package battery

import (
	"context"

	"github.com/detour-collective/dcol/lab/crew"
)

// activeFrom is the number of bytes from which on a connection counts as active.
const activeFrom = "500kB"

// asleep hands a connection over from WiFi to a mobile radio that sleeps, and counts the energy of the radio.
func asleep(ctx context.Context, a *attempt) (v values, err error) {
	p := flowPlan{multipath: true, from: 1, to: 1, down: true}
	if a.variant.mode == "background" {
		p.rate = 0.02
	}
	after, err := a.useBoth(ctx, a.variant.mode)
	if err != nil {
		return nil, err
	}
	var before float64
	v, err = a.handover(ctx, p, a.lengths.wifiOff(), func() (err error) {
		if before, err = a.joules(); err != nil {
			return err
		}
		return a.interfaceDown(ctx)
	}, after)
	if err != nil {
		return v, err
	}
	v["joules_before"] = before
	v["joules"], err = a.joules()
	return v, err
}

// useBoth sets up the use of WiFi and the mobile network by a mode. after, unless nil, is to be called when WiFi has gone.
func (a *attempt) useBoth(ctx context.Context, mode string) (after func() error, err error) {
	first, second := a.Host(clientHost).Interface(clientUplink(1)), a.Host(clientHost).Interface(clientUplink(2))
	m := manage{policy: crew.Settings{"use": "fullmesh", "uplinks": []string{first, second}}}
	switch mode {
	case "backup":
		m.backup, m.policy["use"] = map[int]bool{2: true}, "backup"
	case "single", "stream-single":
		if a.impl == kernelPM {
			return func() error { return a.endpoint(ctx, clientHost, clientUplink(2), "subflow") }, a.limits(ctx)
		}
		m.policy["use"] = "single"
	case "activity", "background":
		if a.impl == kernelPM {
			return nil, errInapplicable // it has one way for all connections
		}
		m.policy["use"], m.policy["after_bytes"] = "backup", activeFrom
	}
	return nil, a.setUp(ctx, m)
}

// joules returns the energy that the radio of the second path has used.
func (b *bed) joules() (float64, error) {
	up, _, err := b.LinkStats(pathLink(2))
	return up.Energy, err
}
