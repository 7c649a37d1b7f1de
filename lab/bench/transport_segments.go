package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/kernel/bpf/option/optiontest"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// The payload of a full segment with timestamps, and the option that segmentCost adds to it.
const (
	segmentBytes = 1448
	optionBytes  = 4
)

// burden is the work that programs do on each segment of a download, as in Tran's thesis (2019, 5.4.5).
type burden struct {
	label          string
	server, client optiontest.Work
}

// burdens lists what is compared. The first one is the baseline.
func burdens() []burden {
	inserting := optiontest.Work{Insert: true}
	return []burden{
		{label: "no program"},
		{label: "an option inserted", server: inserting},
		{label: "an option inserted and parsed", server: inserting, client: optiontest.Work{Parse: true}},
		{label: "an option inserted, parsed, and a value set and read", server: inserting, client: optiontest.Work{Parse: true, Set: true}},
	}
}

// segmentCost measures downloads in which each segment has an option that the receiver parses: at the speed of the
// processors, where each segment passes the hosts by itself, and on a link of 500 Mbit/s, where only the bytes of the
// option should count.
func segmentCost(ctx context.Context, o Options, repetitions int) (found []Measurement, err error) {
	s, err := openPair(ctx, o, testbed.BackendVeth, testbed.LinkParams{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	device := s.Host(serverHost).Interface(transportLink)
	// Else a packet between the hosts has up to 64 KB, and one option.
	if err := s.hostCommand(ctx, serverHost, "ip", "link", "set", "dev", device, "gso_max_segs", "1"); err != nil {
		return nil, err
	}
	stressed, err := s.underBurdens(ctx, 5*repetitions, 1<<29)
	if err != nil {
		return nil, err
	}
	published := []string{"", "-12.7 %", "-16.0 % (-3.8 % more)", "as much as with the option parsed"}
	for i, m := range stressed {
		m.Name = "transport cost, each segment at the speed of the processors: " + m.Name
		if i > 0 {
			m.Note = fmt.Sprintf("%+.0f ns for each segment; published (fig. 5.5, loopback, 30.1 Gbit/s): %s",
				segmentTime(m.Value)-segmentTime(stressed[0].Value), published[i]) + m.Note
		}
		found = append(found, m)
	}
	if err := s.hostCommand(ctx, serverHost, "tc", shape(device, "500mbit")...); err != nil {
		return found, err
	}
	shaped, err := s.underBurdens(ctx, 2*repetitions, 1<<27)
	if err != nil {
		return found, err
	}
	const left = float64(segmentBytes-optionBytes) / segmentBytes
	for i, m := range shaped {
		m.Name = "transport cost, each segment at 500 Mbit/s: " + m.Name
		if i > 0 {
			m = m.target(">= 0.99", *m.Ratio >= 0.99)
			m.Note = fmt.Sprintf("the option leaves %d of %d bytes, %.4f; published (fig. 5.4): 9.38 of 9.41 Gbit/s, %.4f",
				segmentBytes-optionBytes, segmentBytes, left, 9.38/9.41) + m.Note
		}
		found = append(found, m)
	}
	return found, nil
}

// segmentTime returns the nanoseconds from one segment to the next at a rate in Gbit/s.
func segmentTime(rate float64) float64 { return segmentBytes * 8 / rate }

// underBurdens measures downloads under each burden, in turns. The first burden is the baseline of the others. Where
// options are parsed, the note says in which share of the segments.
func (s *network) underBurdens(ctx context.Context, rounds int, size int64) (found []Measurement, err error) {
	list := burdens()
	rates, parsed := make([][]float64, len(list)), make([][]float64, len(list))
	err = inTurns(rounds, len(list), func(_, i int) error {
		rate, share, err := s.burdened(ctx, list[i], size)
		rates[i], parsed[i] = append(rates[i], rate), append(parsed[i], share)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, b := range list {
		m := of(b.label, "Gbit/s", rates[i])
		if i > 0 {
			m = m.against(found[0].Value)
		}
		if b.client.Parse {
			m.Note = fmt.Sprintf("; parsed in %.0f %% of the segments", 100*stats.Summarize(parsed[i]).Median)
		}
		found = append(found, m)
	}
	return found, nil
}

// burdened returns the rate of a download in Gbit/s, and the share of its segments in which the client found the option.
// The kernel merges waiting segments with equal options, and looks at their options only once.
func (s *network) burdened(ctx context.Context, b burden, size int64) (rate, parsed float64, err error) {
	programs := make(map[string]*optiontest.Segments)
	defer func() {
		for _, p := range programs {
			err = errors.Join(err, p.Close())
		}
	}()
	for host, work := range map[string]optiontest.Work{clientHost: b.client, serverHost: b.server} {
		if work == (optiontest.Work{}) {
			continue
		}
		if programs[host], err = attachOn(s, host, func() (*optiontest.Segments, error) { return optiontest.Open(work) }); err != nil {
			delete(programs, host)
			return 0, 0, err
		}
	}
	if rate, err = s.download(ctx, size); err != nil {
		return 0, 0, err
	}
	all := float64(size) / segmentBytes
	for host, p := range programs {
		inserted, found, failed := p.Counts()
		switch {
		case failed != nil:
			return 0, 0, failed
		case host == serverHost && float64(inserted) < all*9/10, host == clientHost && found == 0:
			return 0, 0, fmt.Errorf("%s: of %.0f segments, %d got the option, and it was found in %d", b.label, all, inserted, found)
		}
		parsed = max(parsed, float64(found)/all)
	}
	return rate, parsed, nil
}
