package battery

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
)

// rescued begins a connection on one path, and adds the others in the middle.
func rescued(ctx context.Context, a *attempt) (v values, err error) {
	if a.impl == dcol {
		if err := a.setUp(ctx, manage{}); err != nil {
			return nil, err
		}
		if _, err := a.DCol(ctx, clientHost, append([]string{"avoid"}, a.waypoints()...)...); err != nil {
			return nil, err
		}
	}
	length := a.lengths.rescue
	v = values{}
	err = a.listening(ctx, func(l net.Listener) error {
		f, err := a.start(ctx, l, flowPlan{multipath: true, from: 1, to: 1})
		if err != nil {
			return err
		}
		defer f.abandon()
		if err := crew.Pause(ctx, length/2); err != nil {
			return err
		}
		turn := f.sinceStart()
		if a.impl == dcol {
			_, err = a.DCol(ctx, clientHost, "use", "--reset")
		} else {
			err = a.setUp(ctx, manage{})
		}
		if err != nil {
			return err
		}
		if err := crew.Pause(ctx, length/2); err != nil {
			return err
		}
		a.measured()
		samples, end := f.seen(), f.sinceStart()
		v["rtt_before"], v["goodput_before"] = rtts(samples, turn/4, turn), goodput(samples, turn/4, turn)
		settled := turn + (end-turn)/3
		v["rtt_after"], v["goodput_after"] = rtts(samples, settled, end), goodput(samples, settled, end)
		return nil
	})
	return v, err
}

// waypoints lists those of a star.
func (b *bed) waypoints() (names []string) {
	for k := 2; k <= b.shape.paths(); k++ {
		names = append(names, waypointName(k))
	}
	return names
}

// handedOver downloads while the first path dies, and the second stands by.
func handedOver(ctx context.Context, a *attempt) (values, error) {
	if _, err := a.useBoth(ctx, "backup"); err != nil {
		return nil, err
	}
	return a.handover(ctx, flowPlan{multipath: true, from: 1, to: 1, down: true}, a.lengths.handover/2, func() error {
		if a.variant.mode == "interface" {
			return a.interfaceDown(ctx)
		}
		return a.LinkDown(pathLink(1), true)
	}, nil)
}

// errInapplicable is the error of a case that an implementation cannot have.
var errInapplicable = errors.New("it does not apply to this implementation")

func (b *bed) interfaceDown(ctx context.Context) error {
	_, err := b.Run(ctx, clientHost, "ip", "link", "set", b.Host(clientHost).Interface(clientUplink(1)), "down")
	return err
}

// handover makes a flow whose first path dies at a time. after, unless nil, is called then.
func (a *attempt) handover(ctx context.Context, p flowPlan, moment time.Duration, die, after func() error) (v values, err error) {
	v = values{}
	err = a.listening(ctx, func(l net.Listener) error {
		f, err := a.start(ctx, l, p)
		if err != nil {
			return err
		}
		if err := crew.Pause(ctx, moment); err != nil {
			f.abandon()
			return err
		}
		turn := f.sinceStart()
		err = die()
		if err == nil && after != nil {
			err = after()
		}
		if err != nil {
			f.abandon()
			return err
		}
		if err := crew.Pause(ctx, a.lengths.handover-moment); err != nil {
			f.abandon()
			return err
		}
		a.measured()
		samples, end := f.seen(), f.sinceStart()
		resumed(v, samples, turn, end)
		f.messages.delays(v)
		lost, err := f.stop(startLimit)
		v["lost"] = float64(max(lost, 0))
		if err != nil {
			v["broke"] = 1
		}
		return nil
	})
	return v, err
}

// resumed notes when the second path was joined and when data came after the first died: what was under way at that
// moment does not count, which is why the silence is looked for.
func resumed(v values, samples []sample, turn, end time.Duration) {
	v["join_ms"], v["data_ms"] = milliseconds(end-turn), milliseconds(end-turn)
	joined := false
	last, gapEnd, gap := turn, turn, time.Duration(0)
	for i, s := range samples {
		for _, one := range s.subflows {
			if one.path == 2 && !joined {
				joined = true
				v["join_ms"] = milliseconds(max(0, s.at-turn))
			}
		}
		if i == 0 || s.at <= turn || s.received == samples[i-1].received {
			continue
		}
		if silence := s.at - last; silence > gap {
			gap, gapEnd = silence, s.at
		}
		last = s.at
	}
	if silence := end - last; silence > gap {
		gapEnd = end // nothing came again
	}
	v["data_ms"] = milliseconds(gapEnd - turn)
	v["goodput_after"] = goodput(samples, min(gapEnd, end-time.Second), end)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// modes downloads over WiFi, which goes.
func modes(ctx context.Context, a *attempt) (values, error) {
	mode := a.variant.mode
	p := flowPlan{multipath: true, from: 1, to: 1, down: true}
	switch mode {
	case "application":
		return a.application(ctx)
	case "stream", "stream-single":
		p.rate = 0.5
	}
	after, err := a.useBoth(ctx, mode)
	if err != nil {
		return nil, err
	}
	return a.handover(ctx, p, a.lengths.wifiOff(), func() error { return a.interfaceDown(ctx) }, after)
}
