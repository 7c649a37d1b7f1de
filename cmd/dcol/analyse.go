package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/report"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/units"
)

// analysis holds the flags of dcol analyse.
type analysis struct {
	filter         report.Filter
	idle           time.Duration
	connections    int
	workers        int
	json           bool
	list           bool
	csv, page, key string
	anonymise      bool
	chosen         uint32
}

func analyseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "analyse CAPTURE...",
		Short: "Show what Multipath TCP did in a packet capture",
		Long: `Reads packet captures and tells what Multipath TCP did in them: connections and their subflows,
fallbacks and why, joins, round trips, how the data was spread, what was sent again and after
what, handovers, announced addresses, stalls. Versions 0 and 1. docs/analyse.md defines each figure.

CAPTURE is a pcap or pcapng file, plain or compressed by gzip or zstd, or - for the standard
input. Several files are read as one capture, in the order of time. Captures may be made at the
client, at the server or between them. They may have only one direction, may begin and end at
any time, and may have cut packets: 128 bytes of each packet are enough.

The command needs neither an agent nor root, only permission to read the files.`,
		Example: `  dcol analyse trace.pcapng
  tcpdump -i any -s 128 -w - tcp | dcol analyse -
  dcol analyse --html page.html --csv tables --anonymise trace-*.pcap.gz
  dcol analyse --list --address 203.0.113.0/24 --port 443 trace.pcap`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("CAPTURE is missing; - is the standard input")
			}
			return nil
		},
	}
	var a analysis
	f := cmd.Flags()
	f.BoolVar(&a.json, "json", false, "print JSON ("+report.Schema+")")
	f.BoolVar(&a.list, "list", false, "also print each connection, with its subflows")
	f.StringVar(&a.csv, "csv", "", "also write connections.csv, subflows.csv and round-trips.csv in this `folder`")
	f.StringVar(&a.page, "html", "", "also write a page with plots to this `file`; it needs no network")
	chosen := f.Uint32("connection", 0, "the `number` of the connection that the page plots (default the one with most data)")
	f.BoolVar(&a.anonymise, "anonymise", false, "replace addresses, keeping common prefixes (Crypto-PAn), and leave out tokens")
	f.StringVar(&a.key, "anonymise-key", "", "a `file` of 32 bytes: the same key gives the same addresses (default a random key)")
	addresses := f.StringArray("address", nil, "only connections with this `address` or prefix at either end; may be repeated")
	ports := f.UintSlice("port", nil, "only connections with this `port` at either end; may be repeated")
	tokens := f.StringArray("token", nil, "only the connection with this `token`, as in 0x1a2b3c4d; may be repeated")
	since := f.String("since", "", "only connections alive at this `time` or later, as in 2026-03-01T12:00:00Z")
	until := f.String("until", "", "only connections alive at this `time` or earlier")
	idle := units.Duration(2 * time.Minute)
	f.Var(cli.Duration{Duration: &idle}, "idle", "a connection without a packet for so long has ended")
	f.IntVar(&a.connections, "max-connections", 0, "end the oldest connections early if more are alive; bounds the memory (default as many as fit into half of the memory that is available)")
	f.IntVar(&a.workers, "workers", runtime.GOMAXPROCS(0), "how many processors to use")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.chosen, a.idle = *chosen, idle.Std()
		if !f.Changed("max-connections") {
			a.connections = affordableConnections(os.DirFS("/"))
		}
		for _, err := range []error{
			a.addresses(*addresses), a.ports(*ports), a.tokens(*tokens), a.times(*since, *until), a.limits(),
		} {
			if err != nil {
				return err
			}
		}
		return a.run(cmd.Context(), args, os.Stdout, os.Stderr)
	}
	return cmd
}

func (a *analysis) addresses(list []string) error {
	for _, text := range list {
		if addr, err := netip.ParseAddr(text); err == nil {
			a.filter.Addresses = append(a.filter.Addresses, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--address %q is not an address such as 203.0.113.5 or a prefix such as 2001:db8::/32", text)
		}
		a.filter.Addresses = append(a.filter.Addresses, prefix.Masked())
	}
	return nil
}

func (a *analysis) ports(list []uint) error {
	for _, port := range list {
		if port == 0 || port > 65535 {
			return fmt.Errorf("--port must be between 1 and 65535, not %d", port)
		}
		a.filter.Ports = append(a.filter.Ports, uint16(port))
	}
	return nil
}

func (a *analysis) tokens(list []string) error {
	for _, text := range list {
		token, err := strconv.ParseUint(text, 0, 32)
		if err != nil {
			return fmt.Errorf("--token %q is not a number of 32 bits such as 0x1a2b3c4d", text)
		}
		a.filter.Tokens = append(a.filter.Tokens, uint32(token))
	}
	return nil
}

func (a *analysis) times(since, until string) (err error) {
	now := time.Now()
	if a.filter.Since, err = timeFlag("since", since, now); err != nil {
		return err
	}
	if a.filter.Until, err = timeFlag("until", until, now); err != nil {
		return err
	}
	if !a.filter.Since.IsZero() && !a.filter.Until.IsZero() && a.filter.Since.After(a.filter.Until) {
		return fmt.Errorf("--since %s is later than --until %s", since, until)
	}
	return nil
}

func (a *analysis) limits() error {
	switch {
	case a.idle < time.Second:
		return fmt.Errorf("--idle must be at least 1s, not %v", a.idle)
	case a.connections < 1:
		return fmt.Errorf("--max-connections must be at least 1, not %d", a.connections)
	case a.workers < 1 || a.workers > 256:
		return fmt.Errorf("--workers must be between 1 and 256, not %d", a.workers)
	case a.key != "" && !a.anonymise:
		return errors.New("--anonymise-key needs --anonymise")
	case a.chosen != 0 && a.page == "":
		return errors.New("--connection needs --html")
	}
	return nil
}

func (a *analysis) run(ctx context.Context, paths []string, out, notes io.Writer) error {
	// Connections that are alive are most of the memory, and few are made for each packet: collecting twice as often
	// costs little.
	debug.SetGCPercent(50)
	anonymiser, err := a.anonymiser()
	if err != nil {
		return err
	}
	var files *capture.Merged
	reading(paths, func() { files, err = capture.Open(paths) })
	if err != nil {
		return err
	}
	defer files.Close()
	s := &sink{analysis: a, anonymiser: anonymiser, totals: make([]report.Totals, a.workers)}
	if err := s.open(out); err != nil {
		return err
	}
	var counts analyse.Counts
	reading(paths, func() { counts, err = s.read(ctx, files, a.chosen) })
	if err != nil {
		return errors.Join(err, s.closeTables())
	}
	total := &s.totals[0]
	for i := range s.totals[1:] {
		total.Merge(&s.totals[i+1])
	}
	if err := s.closeTables(); err != nil {
		return err
	}
	if a.page != "" {
		reading(paths, func() { err = s.plot(ctx, paths, counts, total, notes) })
		if err != nil {
			return err
		}
	}
	if a.json {
		return s.json.Close(counts, total)
	}
	if err := total.WriteWords(out, counts); err != nil {
		return err
	}
	return s.writeList(out)
}

// reading calls do, which reads captures, and tells the user if that takes long. It says nothing of the standard input, where
// packets may arrive for hours.
func reading(paths []string, do func()) {
	if slices.Contains(paths, capture.Stdin) {
		do()
		return
	}
	patiently(always("the captures to be read"), do)
}

func (a *analysis) anonymiser() (*report.Anonymiser, error) {
	if !a.anonymise {
		return nil, nil
	}
	if a.key == "" {
		return report.NewAnonymiser(nil)
	}
	key, err := os.ReadFile(a.key)
	if err != nil {
		return nil, err
	}
	if text, err := hex.DecodeString(strings.TrimSpace(string(key))); err == nil {
		key = text
	}
	anonymiser, err := report.NewAnonymiser(key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w\nmake one: openssl rand -hex 32 > %s", a.key, err, a.key)
	}
	return anonymiser, nil
}

// sink receives the ended connections from all workers.
type sink struct {
	*analysis
	anonymiser *report.Anonymiser
	totals     []report.Totals // one for each worker

	mu      sync.Mutex
	json    *report.JSON
	csv     *report.CSV
	files   []*os.File
	err     error
	largest largest
	traced  *track.Record
	listed  []*track.Record
}

// largest is the connection with the most data. The page plots it if the user chooses none.
type largest struct {
	number uint32
	bytes  uint64
}

func (s *sink) open(out io.Writer) (err error) {
	if s.analysis.json {
		if s.json, err = report.NewJSON(out); err != nil {
			return err
		}
	}
	if s.analysis.csv == "" {
		return nil
	}
	if err := os.MkdirAll(s.analysis.csv, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"connections.csv", "subflows.csv", "round-trips.csv"} {
		f, err := os.Create(filepath.Join(s.analysis.csv, name))
		if err != nil {
			return errors.Join(err, s.closeTables())
		}
		s.files = append(s.files, f)
	}
	s.csv, err = report.NewCSV(s.files[0], s.files[1], s.files[2])
	return err
}

func (s *sink) closeTables() (err error) {
	if s.csv != nil {
		err = s.csv.Flush()
		s.csv = nil
	}
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	s.files = nil
	return err
}

// read analyses the files once.
func (s *sink) read(ctx context.Context, files *capture.Merged, trace uint32) (analyse.Counts, error) {
	counts, err := analyse.Run(ctx, files, analyse.Options{
		Idle: s.idle, Connections: s.connections, Workers: s.workers, Trace: trace, Done: s.done,
	})
	if err == nil {
		err = s.err
	}
	return counts, err
}

// done records an ended connection. Each worker has totals of its own. The outputs are shared, so they
// need the lock.
func (s *sink) done(worker int, r *track.Record) {
	if !s.filter.Matches(r) {
		return
	}
	output := s.json != nil || s.csv != nil || s.page != "" || s.list || s.anonymiser != nil
	if output {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	if s.anonymiser != nil {
		s.anonymiser.Record(r)
	}
	s.totals[worker].Add(r)
	if !output || s.err != nil {
		return
	}
	if r.Trace != nil {
		s.traced = r
	}
	if size := r.FromClient + r.FromServer; size > s.largest.bytes || size == s.largest.bytes && r.Number < s.largest.number {
		s.largest = largest{r.Number, size}
	}
	if s.list && !s.analysis.json {
		s.listed = append(s.listed, r)
	}
	if s.json != nil {
		s.err = s.json.Write(r)
	}
	if s.csv != nil && s.err == nil {
		s.err = s.csv.Write(r)
	}
}
