// Package examine runs recipes on the path to a host, with raw sockets and rules that hold back the kernel's resets. It
// needs CAP_NET_RAW and CAP_NET_ADMIN.
package examine

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/hold"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/trace/recipe"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

// Target is the host to which a path leads.
type Target struct {
	Name   string // to show
	Addr   netip.Addr
	Port   uint16
	Device string // the interface to use; empty: any
	Hops   int
}

// Path runs the chosen recipes, in their own order, and calls begin before each. If one of several
// fails, the others still run.
func Path(ctx context.Context, to Target, chosen []string, begin func(recipe.Recipe)) (present.Report, error) {
	conn, err := wire.Open(to.Addr, to.Device)
	if err != nil {
		return present.Report{}, err
	}
	defer conn.Close()
	table, err := hold.New()
	if err != nil {
		return present.Report{}, err
	}
	defer table.Close()
	s := &recipe.Session{
		Net: conn, Source: conn.Source(), Destination: to.Addr, Port: to.Port, MaxHops: to.Hops,
		Random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		Hold: func(source, port uint16) error {
			return table.Add(hold.Flow{Source: source, Destination: netip.AddrPortFrom(to.Addr, port)})
		},
	}
	return Run(ctx, s, to.Name, chosen, begin)
}

// Run runs the chosen recipes in a session.
func Run(ctx context.Context, s *recipe.Session, name string, chosen []string, begin func(recipe.Recipe)) (present.Report, error) {
	report := present.Report{Schema: present.ReportSchema, Name: name, Destination: s.Destination.String(), Port: int(s.Port)}
	var found []compare.Finding
	for _, r := range recipe.All() {
		if !slices.Contains(chosen, r.Name) {
			continue
		}
		begin(r)
		v, err := r.Run(ctx, s)
		if err != nil && (len(chosen) == 1 || ctx.Err() != nil || errors.Is(err, hold.ErrRight)) {
			return report, err
		}
		if err != nil {
			v = &recipe.Verdict{Recipe: r.Name, Outcome: recipe.Unknown, Confidence: recipe.Open, Text: capital(err.Error()) + ".", Evidence: []string{}, Findings: []present.Finding{}}
		}
		found = append(found, v.Located...)
		report.Verdicts = append(report.Verdicts, present.Verdict{
			Recipe: v.Recipe, Question: r.Question, Outcome: string(v.Outcome), Confidence: string(v.Confidence),
			Text: v.Text, Advice: v.Advice, Evidence: v.Evidence, Findings: v.Findings,
		})
	}
	if p := s.First(); p != nil && len(chosen) > 1 {
		err := report.Draw(p, found)
		return report, err
	}
	return report, nil
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
