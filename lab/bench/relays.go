package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// relay is one way to relay connections.
type relay struct {
	name      string
	multipath bool // it accepts MPTCP; others accept TCP
	perPair   int  // descriptors for each connection
	converts  bool // clients name the server in a Convert message
	only      step // of a variant: the only step in which it is measured; 0: all steps
	// command returns the command line of a relay that listens at an address and relays to a server. nil: the kernel
	// forwards packets.
	command func(l *line, at, to netip.AddrPort) ([]string, error)
}

// The names of relays that figures refer to. forwarded has no process.
const (
	forwarded        = "forwarding"
	engineRelay      = "dcol's engine"
	convertRelay     = "dcol's engine, Convert"
	copyRelay        = "io.Copy"
	multipathHAProxy = "HAProxy 3.2"
)

const (
	// mostDescriptors is enough for 20,000 connections of each relay.
	mostDescriptors = 1 << 17
	// spareDescriptors is the number of descriptors that a relay needs besides its connections. Most are the engine's pipes.
	spareDescriptors = 800
	// spareConnections is the number of connections that may be open besides the idle ones: one is measured, others are
	// just ending.
	spareConnections = 100
	// mostIdle bounds the processes over which idle connections are spread.
	mostIdle = 8
)

// step is a kind of measurement for which there are variants of relays.
type step int

const (
	other   step = iota
	moving       // as much as possible at once
	opening      // new connections
)

// raiseDescriptors raises the limit of open files as far as permitted, for this process and for programs that it starts
// later. It returns the limit.
func raiseDescriptors() (int, error) {
	limit := unix.Rlimit{Cur: mostDescriptors, Max: mostDescriptors}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		return mostDescriptors, nil
	}
	// Only root with CAP_SYS_RESOURCE may raise the hard limit.
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return int(min(limit.Max, mostDescriptors)), nil
}

// idlePairs returns how many idle connections each process of the relay gets. Together they have as many as wanted, if the
// limit of open files allows that.
func (r relay) idlePairs(wanted, descriptors int) (each []int) {
	most := max(1, (descriptors-spareDescriptors)/r.perPair-spareConnections)
	for wanted > 0 && len(each) < mostIdle {
		n := min(wanted, most)
		each = append(each, n)
		wanted -= n
	}
	return each
}

// findRelays returns the relays that this machine has, and notes: the version of each HAProxy, or the reason why it is
// missing. haproxy is the program of a HAProxy with MPTCP. descriptors limits the number of files that a relay may open.
func findRelays(ctx context.Context, haproxy string, descriptors int) (all []relay, notes []string) {
	ours := func(r Relay) func(l *line, at, to netip.AddrPort) ([]string, error) {
		return func(l *line, at, to netip.AddrPort) ([]string, error) {
			r.At, r.To = at, to
			return l.Part(RelayPart, r), nil
		}
	}
	all = []relay{
		{name: forwarded},
		{name: engineRelay, multipath: true, perPair: 2, command: ours(Relay{})},
		{name: convertRelay, multipath: true, perPair: 2, converts: true, only: opening, command: ours(Relay{Convert: true})},
		{name: copyRelay, multipath: true, perPair: 6, command: ours(Relay{Copy: true})},
	}
	for _, h := range []struct {
		program   string
		multipath bool
		fix       string
	}{
		{"haproxy", false, "apt-get install haproxy"},
		{haproxy, true, "scripts/haproxy.sh fetches it"},
	} {
		path, version, err := findHAProxy(ctx, h.program)
		if err != nil {
			what := "HAProxy of this machine"
			if h.multipath {
				what = multipathHAProxy
			}
			notes = append(notes, fmt.Sprintf("without %s: %v (%s)", what, err, h.fix))
			continue
		}
		name := "HAProxy " + release(version)
		notes = append(notes, fmt.Sprintf("%s is version %s", name, version))
		if !h.multipath {
			name += ", TCP only"
		}
		for _, splices := range []bool{false, true} {
			r := relay{name: name, multipath: h.multipath, perPair: 2}
			if splices {
				r.name += ", splice-auto"
				r.only = moving
			}
			r.command = func(l *line, at, to netip.AddrPort) ([]string, error) {
				file := fmt.Sprintf("/run/haproxy-%d.cfg", at.Port())
				err := l.Host(middleHost).WriteFile(file, []byte(haproxyConfig(at, to, descriptors, h.multipath, splices)), 0o644)
				return []string{path, "-db", "-f", file}, err
			}
			all = append(all, r)
		}
	}
	return all, notes
}

// findHAProxy returns a program's path, and the version that it reports.
func findHAProxy(ctx context.Context, program string) (path, version string, err error) {
	if path, err = exec.LookPath(program); err != nil {
		return "", "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", "", err
	}
	out, err := exec.CommandContext(ctx, path, "-v").Output()
	if err != nil {
		return "", "", fmt.Errorf("%s -v: %w", path, err)
	}
	version, err = parseHAProxyVersion(string(out))
	return path, version, err
}

// parseHAProxyVersion reads the first line of haproxy -v.
func parseHAProxyVersion(text string) (string, error) {
	fields := strings.Fields(text)
	if len(fields) < 3 || fields[1] != "version" || strings.Count(fields[2], ".") < 2 {
		first, _, _ := strings.Cut(text, "\n")
		return "", fmt.Errorf("read HAProxy's version: %q", first)
	}
	return fields[2], nil
}

// release returns the first two numbers of a version.
func release(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return parts[0] + "." + parts[1]
}

// haproxyConfig returns a configuration with which HAProxy relays from one address to another. It differs from the
// default only in limits that the benchmark would reach.
func haproxyConfig(at, to netip.AddrPort, descriptors int, multipath, splices bool) string {
	bind, option := "ipv4@", ""
	if multipath {
		bind = "mptcp4@"
	}
	if splices {
		option = "\toption splice-auto\n"
	}
	return fmt.Sprintf(`global
	maxconn %d
	maxpipes 256
defaults
	mode tcp
	timeout connect 10s
	timeout client 1h
	timeout server 1h
	backlog 65535
%slisten relay
	bind %s%v
	server server ipv4@%v
`, (descriptors-spareDescriptors)/2, option, bind, at, to)
}
