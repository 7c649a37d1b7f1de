package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/trace/hold"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/trace/recipe"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

func recipeList() string {
	var b strings.Builder
	for _, r := range recipe.All() {
		fmt.Fprintf(&b, "  %-10s %s\n", r.Name, r.Question)
	}
	return strings.TrimRight(b.String(), "\n")
}

// runRecipes runs the chosen recipe, or all, and prints the verdicts.
func (f *traceFlags) runRecipes(ctx context.Context, destination string) error {
	chosen := []string{f.recipe}
	if f.all {
		chosen = recipe.Names()
	}
	report, err := f.verdicts(ctx, destination, chosen)
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(report)
	}
	return report.Text(os.Stdout)
}

// verdicts runs recipes. One of several that fails does not keep the others from running.
func (f *traceFlags) verdicts(ctx context.Context, destination string, chosen []string) (report present.Report, err error) {
	addr, err := f.resolve(ctx, destination, false, false)
	if err != nil {
		return report, err
	}
	conn, err := wire.Open(addr, f.device)
	if err != nil {
		return report, err
	}
	defer conn.Close()
	table, err := hold.New()
	if err != nil {
		return report, err
	}
	defer table.Close()
	s := &recipe.Session{
		Net: conn, Source: conn.Source(), Destination: addr, Port: uint16(f.port), MaxHops: f.hops,
		Random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		Hold: func(source, port uint16) error {
			return table.Add(hold.Flow{Source: source, Destination: netip.AddrPortFrom(addr, port)})
		},
	}
	report = present.Report{Schema: present.ReportSchema, Name: destination, Destination: addr.String(), Port: f.port}
	for _, r := range recipe.All() {
		if !slices.Contains(chosen, r.Name) {
			continue
		}
		if len(chosen) > 1 {
			fmt.Fprintf(os.Stderr, "%s: %s\n", r.Name, r.Question)
		}
		v, err := r.Run(ctx, s)
		if err != nil && (len(chosen) == 1 || ctx.Err() != nil || errors.Is(err, hold.ErrRight)) {
			return report, err
		}
		if err != nil {
			v = &recipe.Verdict{Recipe: r.Name, Outcome: recipe.Unknown, Confidence: recipe.Open, Text: capital(err.Error()) + ".", Evidence: []string{}, Findings: []present.Finding{}}
		}
		report.Verdicts = append(report.Verdicts, present.Verdict{
			Recipe: v.Recipe, Question: r.Question, Outcome: string(v.Outcome), Confidence: string(v.Confidence),
			Text: v.Text, Evidence: v.Evidence, Findings: v.Findings,
		})
	}
	return report, nil
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
