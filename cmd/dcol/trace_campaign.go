package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/campaign/report"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

// campaignFlags are the flags of `dcol trace campaign`.
type campaignFlags struct {
	probe, contact, out, page string
	refusals, from, device    string
	config                    string
	via                       []string
	port, hops, parallel      int
	rate                      float64
	six, asJSON               bool
}

func traceCampaignCommand() *cobra.Command {
	var f campaignFlags
	cmd := &cobra.Command{
		Use:   "campaign LIST",
		Short: "Trace many destinations, with a bounded rate, and sum up what their paths do",
		Long: `Traces each destination of a list, which has one address or name per line. Each result is
appended to a file at once, as a line of JSON. After an interruption, run the same command
again: it continues with the rest.

Each probe carries the text of --contact: who sends it, why, and a mail address or URL at
which you answer complaints. ` + campaign.RefusalsFile + ` and the file of --refusals list those
who do not want to be probed: addresses, prefixes, or names with all names below them. The
command probes neither these nor addresses that belong to no host, such as multicast.

With --via, other members of the collective trace the same destinations from their own
networks, if they allow it and as fast as they allow. The report then shows which changes
happen on the source's side of a path, and which on the destination's side.`,
		Example: `  sudo dcol trace campaign servers.txt --contact 'path measurement, noc@example.org' -o paths.jsonl
  dcol trace figures --html paths.html paths.jsonl`,
		Args: cli.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&f.contact, "contact", "", "the `text` in each probe: who sends it, why, and where to complain")
	cmd.Flags().StringVarP(&f.out, "out", "o", "campaign.jsonl", "the `file` for results; destinations that it has are not traced again")
	cmd.Flags().StringVar(&f.page, "html", "", "also write a page with the figures to this `file`; it needs no network")
	cmd.Flags().StringVar(&f.refusals, "refusals", "", "a `file` of further addresses, prefixes and names that must not be probed")
	cmd.Flags().Float64Var(&f.rate, "rate", 100, "the `number` of packets per second, of all traces together")
	cmd.Flags().IntVar(&f.parallel, "parallel", 50, "the `number` of destinations at a time")
	cmd.Flags().StringVarP(&f.probe, "probe", "p", "", "the `probe` to send, as in dcol trace; the contact becomes its payload")
	cmd.Flags().IntVar(&f.port, "port", 80, "the TCP `port` of probes that name none")
	cmd.Flags().IntVar(&f.hops, "hops", 30, "the `number` of hops at most")
	cmd.Flags().StringVarP(&f.device, "interface", "i", "", "the `interface` to send from")
	cmd.Flags().BoolVarP(&f.six, "ipv6", "6", false, "use IPv6")
	cmd.Flags().StringVar(&f.from, "from", "", "the `name` of this vantage point in the results")
	cmd.Flags().StringSliceVar(&f.via, "via", nil, "`members` that trace the same destinations from their own networks, if they allow it")
	cmd.Flags().StringVarP(&f.config, "config", "c", config.DefaultPath, "the configuration `file`, for --via")
	cmd.MarkFlagsMutuallyExclusive("via", "probe")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the figures as JSON ("+report.Schema+")")
	return cmd
}

// The bounds of a campaign.
const (
	mostRate     = 10_000
	mostParallel = 10_000
	// campaignGCPercent is half of Go's own: a campaign waits most of the time, and collecting more often costs little.
	campaignGCPercent = 50
	// Garbage is collected as often as needed if memory exceeds the larger of these, in bytes.
	campaignMemory    = 80 << 20
	destinationMemory = 80 << 10 // of each destination at a time
)

// check returns an error for the first flag that is out of range.
func (f *campaignFlags) check() error {
	switch {
	case f.port < 1 || f.port > 65535:
		return fmt.Errorf("--port must be between 1 and 65535, not %d", f.port)
	case f.hops < 1 || f.hops > trace.MaxHops:
		return fmt.Errorf("--hops must be between 1 and %d, not %d", trace.MaxHops, f.hops)
	case f.rate < 1 || f.rate > mostRate:
		return fmt.Errorf("--rate must be between 1 and %d packets per second, not %v", mostRate, f.rate)
	case f.parallel < 1 || f.parallel > mostParallel:
		return fmt.Errorf("--parallel must be between 1 and %d, not %d", mostParallel, f.parallel)
	case f.contact == "":
		return errors.New("--contact is missing: who sends the probes, why, and a mail address or URL for complaints")
	}
	return nil
}

func (f *campaignFlags) run(ctx context.Context, list string) error {
	if err := f.check(); err != nil {
		return err
	}
	text := f.probe
	if text == "" {
		text = fmt.Sprintf(defaultProbe, f.port)
	}
	parsed, err := campaign.ParseProbe(text, f.contact)
	if err != nil {
		return err
	}
	names, err := readFile(list, campaign.ReadList)
	if err != nil {
		return err
	}
	refusals, err := f.readRefusals()
	if err != nil {
		return err
	}
	file, err := campaign.OpenFile(f.out)
	if err != nil {
		return err
	}
	err = f.trace(ctx, names, campaign.Campaign{
		Refusals: refusals, Probe: parsed, From: f.from, Parallel: f.parallel, Rate: f.rate, MaxHops: f.hops, Resolve: f.resolve,
	}, file)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return figures([]string{f.out}, f.page, f.asJSON)
}

// trace traces the names that the file does not have yet.
func (f *campaignFlags) trace(ctx context.Context, names []string, c campaign.Campaign, file *campaign.File) (err error) {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	sockets := wire.NewShared(f.device, c.Probe.Has("udp"))
	c.Open = func(a netip.Addr) (campaign.Network, error) {
		opened, err := sockets.Open(a)
		if errors.Is(err, wire.ErrRight) {
			stop(err) // it is no result of a destination
		}
		return opened, err
	}
	c.Names, c.Probed = left(names, f.from, file), file.Probed[f.from]
	debug.SetGCPercent(campaignGCPercent)
	debug.SetMemoryLimit(max(campaignMemory, int64(f.parallel)*destinationMemory))
	fmt.Fprintf(os.Stderr, "%d of %d destinations to trace, %d refusals known\n", len(c.Names), len(names), c.Refusals.Len())
	made, told := 0, time.Now()
	c.Done = func(r *campaign.Record) error {
		if made++; time.Since(told) > 10*time.Second {
			told = time.Now()
			fmt.Fprintf(os.Stderr, "%d of %d\n", made, len(c.Names))
		}
		return file.Add(r)
	}
	if len(f.via) > 0 {
		err = f.runVia(running, &c, names, file)
	} else {
		err = c.Run(running)
	}
	if lost := sockets.Lost(); lost > 0 {
		fmt.Fprintf(os.Stderr, "%d answers were lost because this host could not read them in time: use a lower --rate\n", lost)
	}
	if ctx.Err() != nil {
		fmt.Fprintf(os.Stderr, "%d of %d destinations are traced; the same command goes on with the rest\n", len(names)-len(c.Names)+made, len(names))
	}
	return err
}

// readFile reads a file by a function, and names the file in its errors.
func readFile[T any](path string, read func(io.Reader) (T, error)) (result T, err error) {
	file, err := os.Open(path)
	if err != nil {
		return result, err
	}
	defer file.Close()
	if result, err = read(file); err != nil {
		return result, fmt.Errorf("%s: %w", path, err)
	}
	return result, nil
}

// readRefusals reads the host's list and that of --refusals.
func (f *campaignFlags) readRefusals() (all campaign.Refusals, err error) {
	var more []byte
	if f.refusals != "" {
		if more, err = os.ReadFile(f.refusals); err != nil {
			return all, err
		}
	}
	return campaign.HostRefusals(more)
}

func (f *campaignFlags) resolve(ctx context.Context, name string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	network := "ip4"
	if f.six {
		network = "ip6"
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		return addr.Unmap(), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, network, name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the address: %w", err)
	}
	return addrs[0].Unmap(), nil
}

func traceFiguresCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "figures FILE...",
		Short: "Sum up the results of campaigns, of one or several vantage points",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("FILE is missing: name a file that dcol trace campaign has written")
			}
			return nil
		},
	}
	page := cmd.Flags().String("html", "", "also write a page with the figures to this `file`; it needs no network")
	asJSON := cmd.Flags().Bool("json", false, "print JSON ("+report.Schema+")")
	cmd.RunE = func(_ *cobra.Command, args []string) error { return figures(args, *page, *asJSON) }
	return cmd
}

// figures sums up files of results.
func figures(paths []string, page string, asJSON bool) error {
	summer, damaged := report.NewSummer(), 0
	for _, path := range paths {
		bad, err := readFile(path, func(r io.Reader) (int, error) { return campaign.Read(r, summer.Add) })
		if err != nil {
			return err
		}
		damaged += bad
	}
	s := summer.Summary(damaged)
	if page != "" {
		f, err := os.Create(page)
		if err != nil {
			return err
		}
		if err := errors.Join(s.WritePage(f), f.Close()); err != nil {
			return err
		}
	}
	if asJSON {
		return printJSON(s)
	}
	return s.WriteText(os.Stdout)
}
