package battery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
)

// implementation is the path manager of the connections under test.
type implementation string

// The implementations. plainTCP is the baseline.
const (
	plainTCP implementation = "tcp"
	kernelPM implementation = "kernel"
	mptcpd   implementation = "mptcpd"
	dcol     implementation = "dcol"
)

// describe tells what an implementation does in the tests.
func (i implementation) describe() string {
	switch i {
	case plainTCP:
		return "plain TCP, on each path by itself"
	case kernelPM:
		return "the kernel's path manager, fullmesh, configured by ip mptcp"
	case mptcpd:
		return "mptcpd of Debian with its plugin addr_adv, fullmesh"
	default:
		return "dcol: a client with one uplink, the other paths through members, in-band. Where networks or addresses go, dcol has the uplinks of the client, or announces those of the server"
	}
}

// mptcpdProgram and mptcpdPlugin are where Debian has them, in two packages.
const (
	mptcpdProgram = "/usr/libexec/mptcpd"
	mptcpdPlugin  = "/usr/lib/*/mptcpd/addr_adv.so"
)

// startLimit limits how long a program may take to be ready.
const startLimit = 20 * time.Second

// manage configures the kernel's path manager, and that of mptcpd. dcol decides by its policy.
type manage struct {
	backup map[int]bool // uplinks of the client that only stand by, from 1 on
	// policy is for dcol with the client's uplinks; nil: fullmesh.
	policy crew.Settings
}

// setUp starts the implementation on client and server.
func (b *bed) setUp(ctx context.Context, m manage) error {
	switch b.impl {
	case kernelPM:
		return b.setUpKernel(ctx, m)
	case mptcpd:
		return b.setUpMptcpd(ctx, m)
	case dcol:
		switch {
		case b.shape.uplinks:
			return b.setUpUplinks(ctx, m.policy)
		case b.shape.announces:
			return b.setUpAnnounced(ctx)
		}
		return b.setUpDCol(ctx)
	default:
		return nil
	}
}

// setUpKernel announces the server's addresses, and has the client connect from each of its own to each of them.
func (b *bed) setUpKernel(ctx context.Context, m manage) error {
	if err := b.limits(ctx); err != nil {
		return err
	}
	for j := 2; j <= b.shape.m; j++ {
		if err := b.endpoint(ctx, serverHost, serverUplink(j), "signal"); err != nil {
			return err
		}
	}
	for i := 1; i <= b.shape.n; i++ {
		flags := []string{"subflow", "fullmesh"}
		if m.backup[i] {
			flags = []string{"subflow", "backup"}
		}
		if err := b.endpoint(ctx, clientHost, clientUplink(i), flags...); err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) limits(ctx context.Context) error {
	most := fmt.Sprint(maxSubflows)
	for _, host := range []string{clientHost, serverHost} {
		if _, err := b.Run(ctx, host, "ip", "mptcp", "limits", "set", "subflows", most, "add_addr_accepted", most); err != nil {
			return err
		}
	}
	return nil
}

// endpoint gives the kernel's path manager of a host an address.
func (b *bed) endpoint(ctx context.Context, host, link string, flags ...string) error {
	addr, _ := b.Host(host).AddrOn(link)
	argv := append([]string{"ip", "mptcp", "endpoint", "add", addr.String(), "dev", b.Host(host).Interface(link)}, flags...)
	_, err := b.Run(ctx, host, argv...)
	return err
}

// setUpMptcpd starts mptcpd on both ends: the client's opens subflows, the server's announces addresses. It sets no
// limits, so those are as with the kernel's. Its flags are for all addresses, so ip makes those backups that are.
func (b *bed) setUpMptcpd(ctx context.Context, m manage) error {
	if err := b.limits(ctx); err != nil {
		return err
	}
	for host, flags := range map[string]string{clientHost: "subflow,fullmesh", serverHost: "signal"} {
		_, err := b.Start(ctx, host, "mptcpd", mptcpdProgram, "--path-manager=addr_adv", "--load-plugins=addr_adv",
			"--addr-flags="+flags, "--notify-flags=existing,skip_link_local,skip_loopback", "--log=stderr")
		if err != nil {
			return err
		}
		want := b.shape.n
		if host == serverHost {
			want = b.shape.m
		}
		err = crew.Await(ctx, startLimit, 100*time.Millisecond, func() error {
			out, err := b.Run(ctx, host, "ip", "mptcp", "endpoint", "show")
			if err != nil {
				return err
			}
			if n := lines(out); n < want {
				return fmt.Errorf("mptcpd on %s has made %d of %d addresses known", host, n, want)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i := range m.backup {
		if err := b.standBy(ctx, clientUplink(i)); err != nil {
			return err
		}
	}
	return nil
}

// standBy makes an address that the kernel's path manager of the client has a backup.
func (b *bed) standBy(ctx context.Context, link string) error {
	addr, _ := b.Host(clientHost).AddrOn(link)
	_, err := b.Run(ctx, clientHost, "ip", "mptcp", "endpoint", "change", addr.String(), "backup", "fullmesh")
	return err
}

func lines(text []byte) (n int) {
	for _, c := range text {
		if c == '\n' {
			n++
		}
	}
	return n
}

// setUpDCol starts agents on the client and all waypoints.
func (b *bed) setUpDCol(ctx context.Context) error {
	names := []string{clientHost}
	for k := 2; k <= b.shape.paths(); k++ {
		names = append(names, waypointName(k))
	}
	if err := b.Issue(names...); err != nil {
		return err
	}
	const plenty = 1_000_000
	over := crew.Settings{"log_level": "warn"}
	var waypoints []crew.Waypoint
	for _, name := range names[1:] {
		agent := crew.Agent{Over: over, Waypoint: crew.Settings{
			"offers": []string{"in-band"}, "allow": []string{"10.0.0.0/8"},
			"connections_per_member": 0, "connections_per_second": 0, "requests_per_second": plenty,
		}}
		if err := b.Configure(name, agent); err != nil {
			return err
		}
		if _, err := b.Start(ctx, name, "agent", b.Programs.DCol, "agent"); err != nil {
			return err
		}
		waypoints = append(waypoints, crew.Waypoint{Name: name, Addresses: []netip.Addr{b.Host(name).Addr4()}})
	}
	if len(waypoints) == 0 {
		return nil
	}
	client := crew.Settings{"waypoint": waypoints, "exclude": []string{}, "kinds": []string{"in-band"}, "subflows": b.shape.paths()}
	if err := b.Configure(clientHost, crew.Agent{Over: over, Client: client}); err != nil {
		return err
	}
	agent, err := b.Start(ctx, clientHost, "agent", b.Programs.DCol, "agent")
	if err != nil {
		return err
	}
	return agent.Await(ctx, startLimit, func() error {
		status, err := b.Status(ctx, clientHost)
		if err != nil {
			return err
		}
		return crew.Ready(status, names[1:], "in-band")
	})
}

// setUpUplinks starts an agent that uses the uplinks of the client by a policy, the first one first.
func (b *bed) setUpUplinks(ctx context.Context, policy crew.Settings) error {
	if policy == nil {
		policy = crew.Settings{"use": "fullmesh"}
	}
	if err := b.limits(ctx); err != nil {
		return err
	}
	return b.startWith(ctx, clientHost, policy)
}

// setUpAnnounced starts an agent on the server that announces its addresses. The kernel's path manager of the client
// connects to them.
func (b *bed) setUpAnnounced(ctx context.Context) error {
	if err := b.limits(ctx); err != nil {
		return err
	}
	for i := 1; i <= b.shape.n; i++ {
		if err := b.endpoint(ctx, clientHost, clientUplink(i), "subflow", "fullmesh"); err != nil {
			return err
		}
	}
	return b.startWith(ctx, serverHost, crew.Settings{"use": "fullmesh", "ports": []int{flowPort}, "announce": true})
}

// startWith starts an agent with a policy and without waypoints.
func (b *bed) startWith(ctx context.Context, host string, policy crew.Settings) error {
	if err := b.Issue(host); err != nil {
		return err
	}
	agent := crew.Agent{
		Over:   crew.Settings{"log_level": "warn", "policy": []crew.Settings{policy}},
		Client: crew.Settings{"exclude": []string{}, "subflows": b.shape.paths()},
	}
	if err := b.Configure(host, agent); err != nil {
		return err
	}
	process, err := b.Start(ctx, host, "agent", b.Programs.DCol, "agent")
	if err != nil {
		return err
	}
	return process.Await(ctx, startLimit, func() error {
		_, err := b.Status(ctx, host)
		return err
	})
}

// missing returns why an implementation cannot run on this machine.
func (i implementation) missing() error {
	if i != mptcpd {
		return nil
	}
	if _, err := exec.LookPath(mptcpdProgram); err != nil {
		return errors.New("mptcpd is not installed: apt-get install mptcpd mptcpd-plugins")
	}
	if plugins, _ := filepath.Glob(mptcpdPlugin); len(plugins) == 0 {
		return errors.New("mptcpd lacks its plugin addr_adv: apt-get install mptcpd-plugins")
	}
	return nil
}
