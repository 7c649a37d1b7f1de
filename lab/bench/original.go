package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// original is a waypoint as in 2017. It has no table. For every mapping, the iptables program adds two rules,
// one for each translation.
type original struct {
	program  string // iptables-legacy, or its replacement
	version  string
	mappings int
	seconds  float64
	port     uint16 // of the last mapping, at this host and at the server
}

// addRules adds mappings of a client, from mappingPort on, until the time limit. It appends the rules to the end of their
// chain, like the script of 2017.
func (s *network) addRules(ctx context.Context, host, client string, limit time.Duration) (o original, err error) {
	if o.program, o.version, err = findIptables(ctx); err != nil {
		return o, err
	}
	if err := s.Host(host).Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		return o, err
	}
	script := fmt.Sprintf(`set -e
port=%d
while :; do
	%[2]s -t nat -A PREROUTING -p tcp -s %[3]v --dport $port -j DNAT --to-destination %[4]v:$port
	%[2]s -t nat -A POSTROUTING -p tcp -s %[3]v -d %[4]v --dport $port -j SNAT --to-source %[5]v
	echo $port
	port=$((port + 1))
done`, mappingPort, o.program, s.Host(client).Addr4(), s.Host(serverHost).Addr4(), s.Host(host).Addr4())
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := s.Host(host).Command(limited, "sh", "-c", script)
	start := time.Now()
	out, err := cmd.Output()
	o.seconds = min(time.Since(start).Seconds(), limit.Seconds())
	if ctx.Err() != nil {
		return o, context.Cause(ctx)
	}
	if limited.Err() == nil { // it exited unexpectedly
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return o, fmt.Errorf("add rules with %s: %w", o.program, err)
	}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); o.mappings++ {
		port, err := strconv.ParseUint(lines.Text(), 10, 16)
		if err != nil {
			return o, fmt.Errorf("add rules with %s: it said %q", o.program, lines.Text())
		}
		o.port = uint16(port)
	}
	if o.mappings == 0 {
		return o, fmt.Errorf("%s added no rule in %v", o.program, limit)
	}
	return o, nil
}

// findIptables finds an iptables program. It prefers the kind of 2017, which exchanges whole tables with the kernel, to
// the one that writes nftables.
func findIptables(ctx context.Context) (program, version string, err error) {
	for _, program := range []string{"iptables-legacy", "iptables"} {
		path, err := exec.LookPath(program)
		if err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil {
			return "", "", fmt.Errorf("%s does not run: %w", program, err)
		}
		return path, strings.TrimSpace(string(out)), nil
	}
	return "", "", errors.New("iptables, with which dcol is compared, is not installed: apt-get install iptables")
}
