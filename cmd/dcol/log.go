package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/agent/serving"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/ui"
	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// Exit codes of dcol log verify.
const (
	logFaulty     = 3 // it was changed
	logIncomplete = 4 // nothing contradicts it, but its end is not proven
)

// logRead names what a user waits for while a log is read.
const logRead = "the log to be read"

// logPlace holds the paths of a log and of the authority's certificate for checking it.
type logPlace struct{ config, ca *string }

func logCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Show and verify a waypoint's log of who caused which traffic",
	}
	at := logPlace{
		config: cmd.PersistentFlags().StringP("config", "c", config.DefaultPath, "the waypoint's configuration `file`, which names its log"),
		ca:     cmd.PersistentFlags().String("ca", "", "the authority's certificate `file` (default the configured one)"),
	}
	cmd.AddCommand(logShow(at), logVerify(at))
	return cmd
}

func logShow(at logPlace) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [FILE...]",
		Short: "Show connections, the members that caused them, and the evidence",
		Long: `Shows connections that the waypoint forwarded, and the member that caused each. Reads the
log that the configuration names, or the given files. It does not verify the log; dcol log
verify does.`,
		Example: `  dcol log show --egress 198.51.100.9:40112 --evidence
  dcol log show --member alice --since 24h`,
	}
	member := cmd.Flags().String("member", "", "only connections of this `member`")
	server := cmd.Flags().String("server", "", "only to this `address`, or address and port")
	egress := cmd.Flags().String("egress", "", "only those that a server saw coming from this `address` and port of the waypoint")
	since := cmd.Flags().String("since", "", "only those open at this `time` or later: 2026-03-01T12:00:00Z, 2026-03-01, or 24h for a day ago")
	until := cmd.Flags().String("until", "", "only those open at this `time` or earlier")
	evidence := cmd.Flags().Bool("evidence", false, "also show the members' signed statements, and verify them")
	asJSON := cmd.Flags().Bool("json", false, "print JSON ("+api.LogSchema+")")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		filter := attribution.Filter{Member: *member}
		var err error
		for _, parse := range []func() error{
			func() error { filter.Server, err = endpointFlag("server", *server); return err },
			func() error { filter.Egress, err = endpointFlag("egress", *egress); return err },
			func() error { filter.Since, err = timeFlag("since", *since, time.Now()); return err },
			func() error { filter.Until, err = timeFlag("until", *until, time.Now()); return err },
		} {
			if err := parse(); err != nil {
				return err
			}
		}
		if *member != "" {
			if err := collective.CheckName(*member); err != nil {
				return fmt.Errorf("--member: %w", err)
			}
		}
		if !filter.Since.IsZero() && !filter.Until.IsZero() && filter.Since.After(filter.Until) {
			return fmt.Errorf("--since %s is later than --until %s", *since, *until)
		}
		files, err := at.files(args)
		if err != nil {
			return err
		}
		var flows []attribution.Flow
		var sessions map[wire.SessionID]*attribution.Session
		var summaries []attribution.Entry
		patiently(always(logRead), func() {
			if flows, sessions, err = attribution.Flows(files, filter); err == nil {
				summaries, err = attribution.Summaries(files, filter)
			}
		})
		if err != nil {
			return err
		}
		for _, s := range summaries {
			fmt.Fprintf(os.Stderr, "note: %s had used up its share of the log: %d lines from %s to %s exist only as a summary (entries-summarised)\n",
				s.Member, s.Summarised, s.Opened.UTC().Format(time.RFC3339), s.Time.UTC().Format(time.RFC3339))
		}
		out := api.Log{Schema: api.LogSchema, Flows: []api.LogFlow{}}
		for _, f := range flows {
			out.Flows = append(out.Flows, serving.DescribeFlow(f))
		}
		if *evidence {
			authority, err := at.authority()
			if err != nil {
				return err
			}
			out.Sessions = describeSessions(sessions, authority)
		}
		if *asJSON {
			return printJSON(out)
		}
		return ui.Log(os.Stdout, out)
	}
	return cmd
}

func logVerify(at logPlace) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [FILE...]",
		Short: "Verify that a log is as its waypoint wrote it, and the members' statements",
		Long: `Verifies the log that the configuration names, or the given files. It prints what is proven,
what is not, and where something was changed. It needs only the files and the authority's
certificate, so anyone can verify a copy.

The exit code is 0 if everything is proven, 3 if the log is not as its waypoint wrote it, and
4 if nothing contradicts it but its end is not signed.`,
		Example: "  dcol log verify --ca ca.crt attribution.jsonl attribution.jsonl.1",
	}
	heads := cmd.Flags().StringArray("head", nil, "a `head` that was printed earlier and that the log must still contain")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		var known []attribution.Head
		for _, text := range *heads {
			head, err := attribution.ParseHead(text)
			if err != nil {
				return err
			}
			known = append(known, head)
		}
		files, err := at.files(args)
		if err != nil {
			return err
		}
		authority, err := at.authority()
		if err != nil {
			return err
		}
		var report *attribution.Report
		patiently(always(logRead), func() { report, err = attribution.Verify(files, authority, known...) })
		if err != nil {
			return err
		}
		if err := report.Write(os.Stdout); err != nil {
			return err
		}
		switch {
		case !report.Clean():
			return cli.ExitCode(logFaulty)
		case !report.Complete():
			return cli.ExitCode(logIncomplete)
		}
		return nil
	}
	return cmd
}

// files returns the files of the command line, or this host's own log.
func (at logPlace) files(args []string) ([]attribution.File, error) {
	var files []attribution.File
	for _, path := range args {
		files = append(files, attribution.OpenFile(path))
	}
	if len(files) > 0 {
		return files, nil
	}
	c, err := config.Load(*at.config)
	if err != nil {
		return nil, fmt.Errorf("%w\nor give the log's files as arguments", err)
	}
	return attribution.FilesOf(c.Waypoint.Log)
}

// authority returns an authority that only checks the authority's certificate, without revocations:
// a member revoked later was a member when it signed.
func (at logPlace) authority() (attribution.Authority, error) {
	ca := *at.ca
	if ca == "" {
		c, err := config.Load(*at.config)
		if err != nil {
			return nil, fmt.Errorf("%w\nor give the authority's certificate with --ca", err)
		}
		ca = c.Identity.CA
	}
	trust, err := collective.ReadTrust(ca, "")
	if err != nil {
		return nil, err
	}
	return func(chain [][]byte, at time.Time) (attribution.Signer, error) {
		m, err := trust.Verify(chain, at)
		return attribution.Signer{Name: m.Name, Serial: m.Serial, Collective: m.Collective, Key: m.Key[:]}, err
	}, nil
}

// endpointFlag parses an address with or without a port.
func endpointFlag(name, text string) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr, 0), nil
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return at, fmt.Errorf("--%s %q is not an address such as 203.0.113.5, 203.0.113.5:443 or [2001:db8::5]:443", name, text)
	}
	return at, nil
}

// timeFlag parses a time, or a duration before now.
func timeFlag(name, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	var ago units.Duration
	if err := ago.UnmarshalText([]byte(text)); err != nil {
		return time.Time{}, fmt.Errorf("--%s %q is not a time such as 2026-03-01T12:00:00Z, \"2026-03-01 12:00:00\", 2026-03-01, or 24h for a day ago", name, text)
	}
	return now.Add(-ago.Std()), nil
}

// describeSessions returns the evidence of sessions, the oldest first.
func describeSessions(sessions map[wire.SessionID]*attribution.Session, authority attribution.Authority) []api.LogSession {
	var list []api.LogSession
	for _, s := range sessions {
		out := api.LogSession{
			Session: s.Session.String(), Collective: s.Collective, Waypoint: s.Waypoint, Member: s.Member, Serial: s.Serial,
			Opened: s.Opened, Stated: s.Time, Message: s.Message(), Signature: s.Signature, Chain: s.Chain,
		}
		if err := s.Check(authority); err != nil {
			out.Why = err.Error()
		} else {
			out.Proven = true
		}
		list = append(list, out)
	}
	slices.SortFunc(list, func(a, b api.LogSession) int {
		return cmp.Or(a.Opened.Compare(b.Opened), cmp.Compare(a.Session, b.Session))
	})
	return list
}
