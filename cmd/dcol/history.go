package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/ui"
)

// historySpans has the default of --last for each step.
var historySpans = map[api.HistoryStep]time.Duration{
	api.StepMinute: time.Hour, api.StepHour: 24 * time.Hour, api.StepDay: 31 * 24 * time.Hour, api.StepMonth: 400 * 24 * time.Hour,
}

func historyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show what paths carried, and what connections gained by detours",
		Long: `Shows what this host's paths carried by the minute, hour, day or month, and what its
connections gained by detours: the bytes over detours, the transfers that continued while
the direct path carried nothing (STALLS BRIDGED), and the time saved. The time saved is an
estimate of how much longer bulk transfers would have taken on the direct path alone. BETWEEN
has its bounds.

Minutes are kept for two days, and hours for 400 days. No destinations are kept.
[history] keep = false in the configuration switches it off.`,
		Example: "  dcol history --by day",
		Args:    cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	by := cmd.Flags().String("by", string(api.StepHour), "the `length` of a period: minute, hour, day or month")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions( // the flag exists
		[]string{string(api.StepMinute), string(api.StepHour), string(api.StepDay), string(api.StepMonth)}, cobra.ShellCompDirectiveNoFileComp))
	last := cmd.Flags().Duration("last", 0, "how far back, such as 48h; by default an hour of minutes, a day of hours, a month of days, a year of months")
	asJSON := cmd.Flags().Bool("json", false, "print JSON ("+api.HistorySchema+")")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		step := api.HistoryStep(*by)
		span, ok := historySpans[step]
		switch {
		case !ok:
			return fmt.Errorf("--by %s: choose minute, hour, day or month", *by)
		case *last < 0:
			return fmt.Errorf("--last %v: it must be positive", *last)
		case *last > 0:
			span = *last
		}
		now := time.Now()
		h, err := dial(*socket).History(cmd.Context(), api.HistoryRequest{Step: step, Since: now.Add(-span)})
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(h)
		}
		if len(h.Total.Paths) == 0 { // perhaps because this member has no connections of its own
			status, err := dial(*socket).Status(cmd.Context())
			if err != nil {
				return err
			}
			if status.Client == nil {
				_, err = fmt.Println("This member is no client, so nothing is recorded of connections of its own. dcol status shows what it forwards for others.")
				return err
			}
		}
		return ui.History(os.Stdout, h)
	}
	return cmd
}
