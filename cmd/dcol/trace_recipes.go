package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/detour-collective/dcol/internal/trace/examine"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/trace/recipe"
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
	var report present.Report
	var err error
	patiently(always(probeAnswers), func() { report, err = f.verdicts(ctx, destination, chosen) })
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(report)
	}
	return report.Text(os.Stdout)
}

// verdicts runs recipes. If one of several fails, the others still run.
func (f *traceFlags) verdicts(ctx context.Context, destination string, chosen []string) (report present.Report, err error) {
	addr, err := f.resolve(ctx, destination, false, false)
	if err != nil {
		return report, err
	}
	target := examine.Target{Name: destination, Addr: addr, Port: uint16(f.port), Device: f.device, Hops: f.hops}
	return examine.Path(ctx, target, chosen, func(r recipe.Recipe) {
		if len(chosen) > 1 {
			fmt.Fprintf(os.Stderr, "%s: %s\n", r.Name, r.Question)
		}
	})
}
