package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/probe"
	"github.com/detour-collective/dcol/internal/probe/latest"
	"github.com/detour-collective/dcol/internal/probe/report"
	"github.com/detour-collective/dcol/internal/tomlfile"
)

func probeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Measure traffic of known shapes over TCP, MPTCP and detours",
		Long: `Makes traffic of a known shape to a server that runs dcol probe serve, in turns over plain
TCP, MPTCP, and MPTCP with detours, and shows what a program gets: delays, goodput, and the path
that each reply took. docs/probe.md describes the shapes and how to measure for months.`,
	}
	cmd.AddCommand(probeServeCommand(), probeRunCommand(), probeReportCommand())
	return cmd
}

func probeServeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer dcol probe run of other hosts",
		Long: `Answers probe traffic until it is interrupted. It needs neither an agent nor root, and accepts MPTCP
and plain TCP. Anybody who can reach the port can download 5 MB at a time.`,
		Example: "  dcol probe serve --listen 192.0.2.7:45680",
		Args:    cli.Exactly(0),
	}
	listen := cmd.Flags().String("listen", fmt.Sprintf(":%d", probe.Port), "the `address` and port to listen at")
	newest := cmd.Flags().Bool("answer-on-latest", false,
		"answer on the subflow that brought the client's newest data, by making the others backups; needs root and net.mptcp.pm_type=1")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		server := probe.Server{Log: cli.Log("info")}
		if *newest {
			chooser, closing, err := chooser(ctx)
			if err != nil {
				return err
			}
			defer closing()
			server.Prefer = chooser.Prefer
		}
		l, err := probe.Listen(ctx, *listen)
		if err != nil {
			return fmt.Errorf("listen for probe traffic: %w", err)
		}
		fmt.Fprintf(os.Stderr, "answering probe traffic at %v\n", l.Addr())
		return server.Serve(ctx, l)
	}
	return cmd
}

// chooser prepares the kernel's path manager for a server that chooses the subflows of its answers.
func chooser(ctx context.Context) (*latest.Chooser, func(), error) {
	value, err := os.ReadFile("/proc/sys/net/mptcp/pm_type")
	if err != nil {
		return nil, nil, fmt.Errorf("read the kernel's path manager: %w", err)
	}
	if strings.TrimSpace(string(value)) != "1" {
		return nil, nil, errors.New("--answer-on-latest needs the userspace path manager: sysctl net.mptcp.pm_type=1")
	}
	kernel, err := mptcp.Open(cli.Log("warn"))
	if err != nil {
		return nil, nil, err
	}
	events := make(chan mptcp.Event)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // the kernel accepts joins only while somebody listens
		defer close(done)
		_ = kernel.Listen(ctx, events)
	}()
	go func() {
		for {
			select {
			case <-events:
			case <-ctx.Done():
				return
			}
		}
	}()
	return &latest.Chooser{Kernel: kernel}, func() { cancel(); <-done; kernel.Close() }, nil
}

// probeRun holds the flags of dcol probe run.
type probeRun struct {
	ways           []string
	rounds         int
	pause          time.Duration
	file, page     string
	socket, source string
	asJSON, quiet  bool
}

func probeRunCommand() *cobra.Command {
	var f probeRun
	cmd := &cobra.Command{
		Use:   "run SERVER SHAPE",
		Short: "Measure traffic to a server that runs dcol probe serve",
		Long: `Makes exchanges in turns over TCP, MPTCP and MPTCP with detours, and prints percentiles and the
paths of replies. SERVER is an address or a name, with or without a port. SHAPE is one of:

  voice         a voice assistant: nine bursts, 300 ms apart, each answered by a few bytes;
                the delay from the last burst to the first byte of the reply
  voice-quiet   the same without the intermediate replies
  requests      20 requests, 100 ms apart, each answered by 10 KB; the delay of each answer
  stream        ten seconds of 500 kbit/s from the server; how late each message is
  bulk          a download of 5 MB; the goodput
  page          a web page: a document, and 24 objects of it; the time to load them

With --append, each result is written to the file at once, and dcol probe report sums up the file.
Detours need an agent on this host, and root to ask the agent for the names of paths.

Exit codes:
  0    all exchanges were made
  1    the server vanished, or an exchange failed
  130  it was interrupted`,
		Example: `  dcol probe run server.example voice
  dcol probe run server.example bulk --over tcp,mptcp --rounds 20 --html bulk.html
  dcol probe run server.example requests --rounds 1 --append /var/lib/dcol/probe.jsonl --quiet`,
		Args: cli.Exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0], args[1]) },
	}
	cmd.Flags().StringSliceVar(&f.ways, "over", nil, "`ways` among tcp, mptcp and detours (default those, detours only with an agent)")
	cmd.Flags().IntVar(&f.rounds, "rounds", 5, "the `number` of exchanges by each way")
	cmd.Flags().DurationVar(&f.pause, "pause", time.Second, "the `time` between exchanges")
	cmd.Flags().StringVar(&f.file, "append", "", "append each result to this `file`, a line of JSON")
	cmd.Flags().StringVar(&f.page, "html", "", "also write a page with plots to this `file`; it needs no network")
	cmd.Flags().StringVar(&f.source, "source", "", "the local `address` to connect from (default as routed)")
	cmd.Flags().StringVar(&f.socket, "socket", config.DefaultSocket, "the agent's `socket`")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the summary as JSON ("+report.Schema+")")
	cmd.Flags().BoolVar(&f.quiet, "quiet", false, "print nothing but errors")
	cmd.MarkFlagsMutuallyExclusive("json", "quiet")
	return cmd
}

func (f *probeRun) run(ctx context.Context, server, shape string) error {
	var names []string
	for _, s := range probe.Shapes() {
		names = append(names, string(s))
	}
	if !slices.Contains(names, shape) {
		return fmt.Errorf("there is no shape %q%s; there are %s", shape, tomlfile.Nearest(shape, names), strings.Join(names, ", "))
	}
	const most = 100_000
	if f.rounds < 1 || f.rounds > most {
		return fmt.Errorf("--rounds must be between 1 and %d, not %d", most, f.rounds)
	}
	if f.pause < 0 {
		return fmt.Errorf("--pause must not be negative: %v", f.pause)
	}
	c := probe.Campaign{Rounds: f.rounds, Pause: f.pause, Client: probe.Client{Server: withPort(server), Shape: probe.Shape(shape)}}
	if f.source != "" {
		if c.Client.Source = net.ParseIP(f.source); c.Client.Source == nil {
			return fmt.Errorf("--source %q is no address such as 192.0.2.7", f.source)
		}
	}
	if err := f.chooseWays(ctx, &c); err != nil {
		return err
	}
	var file *probe.File
	if f.file != "" {
		var err error
		if file, err = probe.OpenFile(f.file); err != nil {
			return err
		}
		defer file.Close()
	}
	var records []probe.Record
	failed := 0
	var made atomic.Int64 // as many as there are records; another goroutine reads it
	c.Done = func(r probe.Record) error {
		records = append(records, r)
		made.Add(1)
		if r.Error != "" {
			failed++
		}
		if file == nil {
			return nil
		}
		return file.Append(r)
	}
	var err error
	run := func() { err = c.Run(ctx) }
	if f.quiet {
		run()
	} else {
		patiently(func() string {
			return fmt.Sprintf("the exchanges (%d of %d are made)", made.Load(), c.Rounds*len(c.Ways))
		}, run)
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d exchanges failed, the last because: %s", failed, len(records), lastError(records))
	}
	if len(records) == 0 {
		return err
	}
	return errors.Join(f.show(report.Summarise(records, 0, 0)), err)
}

// lastError returns the reason of the last exchange that failed.
func lastError(records []probe.Record) string {
	for _, r := range slices.Backward(records) {
		if r.Error != "" {
			return r.Error
		}
	}
	return ""
}

func (f *probeRun) show(s *report.Summary) error {
	var err error
	switch {
	case f.asJSON:
		err = printJSON(s)
	case !f.quiet:
		err = s.WriteText(os.Stdout)
	}
	return errors.Join(err, writeProbePage(f.page, s))
}

func writeProbePage(path string, s *report.Summary) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(s.WritePage(f), f.Close())
}

// chooseWays sets the ways by --over; by default TCP, MPTCP and, if an agent runs, detours. It connects the campaign with the
// agent, if there is one.
func (f *probeRun) chooseWays(ctx context.Context, c *probe.Campaign) error {
	agent := api.Dial(f.socket)
	_, agentErr := dial(f.socket).Status(ctx)
	for _, text := range f.ways {
		if !slices.Contains(probe.Ways(), probe.Way(text)) {
			return fmt.Errorf("--over %s: the ways are tcp, mptcp and detours", text)
		}
		c.Ways = append(c.Ways, probe.Way(text))
	}
	if len(c.Ways) == 0 {
		c.Ways = []probe.Way{probe.TCP, probe.MPTCP}
		if agentErr == nil {
			c.Ways = append(c.Ways, probe.Detours)
		}
	}
	if slices.Contains(c.Ways, probe.Detours) && agentErr != nil {
		return fmt.Errorf("detours: %w", agentErr)
	}
	if agentErr == nil {
		c.Client.Path = func(s probe.Subflow) string { return detourName(ctx, agent, s) }
		c.Client.Before = func(ctx context.Context, way probe.Way, local net.Addr) error {
			if way == probe.Detours {
				return nil
			}
			return agent.Spare(ctx, api.SpareRequest{Local: local.(*net.TCPAddr).AddrPort()})
		}
	}
	return nil
}

// detourName asks the agent which detour a subflow is.
func detourName(ctx context.Context, agent *api.Client, s probe.Subflow) string {
	status, err := agent.Status(ctx)
	if err != nil || status.Client == nil {
		return ""
	}
	for _, c := range status.Client.Connections {
		for _, known := range c.Subflows {
			if known.Local == s.Local && known.Remote == s.Remote {
				return cmp.Or(known.Waypoint, known.Kind)
			}
		}
	}
	return ""
}

// withPort adds the default port to an address or a name that has none.
func withPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(strings.Trim(server, "[]"), strconv.Itoa(probe.Port))
}

func probeReportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report FILE...",
		Short: "Sum up files that dcol probe run --append has written",
		Long: `Prints percentiles, failures, the paths of replies, and the times without results. Lines that are
damaged, as by a power cut, are left out and counted.`,
		Example: "  dcol probe report --html probe.html /var/lib/dcol-probe/*.jsonl",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("FILE is missing: name a file to which dcol probe run --append has written")
			}
			return nil
		},
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON ("+report.Schema+")")
	page := cmd.Flags().String("html", "", "also write a page with plots to this `file`; it needs no network")
	gap := cmd.Flags().Duration("gap", 0, "a pause longer than this `time` is shown as a gap (default three times the usual pause)")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		var all []probe.Record
		damaged := 0
		for _, path := range args {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			records, bad, err := probe.Read(f)
			_ = f.Close()
			if err != nil {
				return fmt.Errorf("read %s: %w", path, err)
			}
			all, damaged = append(all, records...), damaged+bad
		}
		slices.SortStableFunc(all, func(a, b probe.Record) int { return a.Time.Compare(b.Time) })
		if len(all) == 0 {
			return fmt.Errorf("there are no results in %s (damaged lines: %d)", strings.Join(args, ", "), damaged)
		}
		s := report.Summarise(all, damaged, *gap)
		if err := writeProbePage(*page, s); err != nil {
			return err
		}
		if *asJSON {
			return printJSON(s)
		}
		return s.WriteText(os.Stdout)
	}
	return cmd
}
