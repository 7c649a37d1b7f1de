package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/campaign/report"
	"github.com/detour-collective/dcol/lab/middlebox"
)

const campaignContact = "path measurement, noc@example.org"

// counted is a path whose packets are counted, with the times at which they are sent.
type counted struct {
	*Chain
	source netip.Addr
	mu     *sync.Mutex
	sent   *[]time.Time
	plain  *int // packets without the contact
}

func (c counted) Source() netip.Addr { return c.source }
func (c counted) Close() error       { c.Chain.Close(); return nil }

func (c counted) Send(b []byte) error {
	c.mu.Lock()
	*c.sent = append(*c.sent, time.Now())
	if p, err := packet.Parse(b); err == nil && p.TCP.Flags.Has(packet.SYN) && !bytes.Contains(b, []byte(campaignContact)) {
		*c.plain++
	}
	c.mu.Unlock()
	return c.Chain.Send(b)
}

// A campaign keeps its rate, names itself in every probe, leaves out who refused, and finds the boxes.
func TestCampaign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe, err := campaign.ParseProbe("IP / tcp{dst=80} / mss(1460) / MPCAPABLE", campaignContact)
		if err != nil {
			t.Fatal(err)
		}
		refusals, err := campaign.ReadRefusals(strings.NewReader("refused.example\n198.51.100.5\n"))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var sent []time.Time
		plain := 0
		opened := map[netip.Addr]int{}
		const number, rate = 40, 200
		const changed = number/2 + 1 // one of the last names has an even address, too
		c := campaign.Campaign{
			Refusals: refusals, Probe: probe, Parallel: 10, Rate: rate, MaxHops: 20,
			Resolve: func(_ context.Context, name string) (netip.Addr, error) {
				if name == "missing.example" {
					return netip.Addr{}, errors.New("lookup missing.example: no such host")
				}
				var n byte
				if _, err := fmt.Sscanf(name, "s%d.example", &n); err != nil {
					n = 250
				}
				return netip.AddrFrom4([4]byte{198, 51, 100, n}), nil
			},
			Open: func(to netip.Addr) (campaign.Network, error) {
				mu.Lock()
				opened[to]++
				mu.Unlock()
				hops := make([]Hop, 8)
				for i := range hops {
					hops[i].Quotes = middlebox.QuoteAll
				}
				if to.As4()[3]%2 == 0 {
					hops[3].Box = middlebox.ClampMSS
				}
				return counted{New(hops, 5*time.Millisecond, Linux()), alice.Addr(), &mu, &sent, &plain}, nil
			},
		}
		for i := range number {
			c.Names = append(c.Names, fmt.Sprintf("s%d.example", i+1))
		}
		c.Names = append(c.Names, "www.refused.example", "missing.example", "one.example", "two.example")
		summer, results := report.NewSummer(), 0
		c.Done = func(r *campaign.Record) error { results++; summer.Add(r); return nil }
		began := time.Now()
		if err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		if results != len(c.Names) || plain != 0 {
			t.Errorf("%d results of %d, %d probes without the contact", results, len(c.Names), plain)
		}
		// Resets at the end of a trace answer the server and are beside the rate.
		if most := 1.2*rate*took.Seconds() + rate/20; float64(len(sent)) > most {
			t.Errorf("%d packets in %v: at most %.0f fit %d a second", len(sent), took, most, rate)
		}
		if opened[netip.MustParseAddr("198.51.100.5")] != 0 {
			t.Error("an address that refused was probed")
		}
		for addr, n := range opened {
			if n > 1 {
				t.Errorf("%v was probed %d times", addr, n)
			}
		}
		s := summer.Summary(0)
		if s.Traced != number || s.Skipped != 3 || s.Failed["no such host"] != 1 {
			t.Errorf("%d traced, %d skipped, failed %v", s.Traced, s.Skipped, s.Failed)
		}
		if len(s.Changes) != 1 || s.Changes[0].What != "MSS changed" || s.Changes[0].Paths != changed || s.Changes[0].ErrorUpTo(1) != 1 {
			t.Errorf("%+v", s.Changes)
		}
		if len(s.Boxes) != 1 || s.Boxes[0].Paths != changed {
			t.Errorf("%+v", s.Boxes)
		}
		var page, text strings.Builder
		if err := errors.Join(s.WritePage(&page), s.WriteText(&text)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"MSS changed", fmt.Sprint(changed)} {
			if !strings.Contains(page.String(), want) || !strings.Contains(text.String(), want) {
				t.Errorf("no %q in %s", want, text.String())
			}
		}
	})
}

// An interrupted campaign keeps what it has, and drops what was under way.
func TestCampaignIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe, err := campaign.ParseProbe("IP / TCP", campaignContact)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var sent []time.Time
		plain, results := 0, 0
		ctx, cancel := context.WithCancel(t.Context())
		c := campaign.Campaign{
			Probe: probe, Parallel: 4, Rate: 100, MaxHops: 20,
			Resolve: func(_ context.Context, name string) (netip.Addr, error) { return netip.ParseAddr(name) },
			Open: func(netip.Addr) (campaign.Network, error) {
				return counted{New(make([]Hop, 8), 5*time.Millisecond, Linux()), alice.Addr(), &mu, &sent, &plain}, nil
			},
			Done: func(r *campaign.Record) error {
				if results++; results == 5 {
					cancel()
				}
				if r.Error != "" {
					t.Errorf("%s: %s", r.Name, r.Error)
				}
				return nil
			},
		}
		for i := range 50 {
			c.Names = append(c.Names, fmt.Sprintf("198.51.100.%d", i+1))
		}
		if err := c.Run(ctx); !errors.Is(err, context.Canceled) || results < 5 || results > 8 {
			t.Errorf("%d results, %v", results, err)
		}
	})
}

// A campaign that goes on does not probe an address again that it knows by another name.
func TestCampaignGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe, err := campaign.ParseProbe("IP / TCP", campaignContact)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "results.jsonl")
		file, err := campaign.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		opened := map[netip.Addr]int{}
		goOn := func(names ...string) (skipped []string) {
			c := campaign.Campaign{
				Names: names, Probe: probe, Parallel: 1, Rate: 100, MaxHops: 20, Probed: file.Probed[""],
				Resolve: func(context.Context, string) (netip.Addr, error) { return bob.Addr(), nil },
				Open: func(to netip.Addr) (campaign.Network, error) {
					opened[to]++
					return counted{New(make([]Hop, 3), time.Millisecond, Linux()), alice.Addr(), new(sync.Mutex), new([]time.Time), new(int)}, nil
				},
				Done: func(r *campaign.Record) error {
					if r.Skipped != "" {
						skipped = append(skipped, r.Name+": "+r.Skipped)
					}
					return file.Add(r)
				},
			}
			if err := errors.Join(c.Run(t.Context()), file.Close()); err != nil {
				t.Fatal(err)
			}
			return skipped
		}
		goOn("one.example")
		if file, err = campaign.OpenFile(path); err != nil {
			t.Fatal(err)
		}
		skipped := goOn("two.example")
		if opened[bob.Addr()] != 1 || len(skipped) != 1 || skipped[0] != "two.example: its address 203.0.113.80 was probed as one.example" {
			t.Errorf("probed %v, skipped %q", opened, skipped)
		}
	})
}
