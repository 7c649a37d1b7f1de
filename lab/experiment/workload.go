package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
	"github.com/detour-collective/dcol/lab/traffic"
)

// listenLimit bounds the time that a server takes to listen.
const listenLimit = 10 * time.Second

// execution is a run in progress.
type execution struct {
	lab       *Lab
	crew      crew.Crew // with the folder of the run's logs
	workload  scenario.Workload
	variant   scenario.Variant
	procedure scenario.Procedure
	target    netip.AddrPort // what the client connects to
	local     netip.Addr     // the client's source address; if zero, its kernel chooses
	began     time.Time
	sampler   *sampler
	result    *report.Run
}

// traffic runs the workload, and sets the result's goodput as measured by the workload's program.
func (x *execution) traffic(ctx context.Context) error {
	switch x.workload.Kind {
	case scenario.Upload, scenario.Download:
		return x.iperf(ctx)
	case scenario.HTTP:
		return x.web(ctx)
	case scenario.Stream, scenario.Requests:
		return x.turns(ctx)
	default:
		return x.command(ctx)
	}
}

// proxy returns the URL of the proxy that the client's program uses, or "" if it uses none.
func (x *execution) proxy() string {
	if x.procedure.Proxy == "" {
		return ""
	}
	return string(x.procedure.Proxy) + "://" + proxyAddress
}

// startClient starts the workload's client, whose sockets are of the procedure's kind. A program that uses a proxy, is
// captured or is behind a gateway has plain sockets.
func (x *execution) startClient(ctx context.Context, name string, argv []string, stdout io.Writer) (*crew.Process, error) {
	if x.procedure.Transport == scenario.MPTCP && !x.procedure.RunsPlain() && x.lab.Scenario.Gateway() == "" {
		argv = append([]string{x.lab.opts.Programs.DCol, "run", "--"}, argv...)
	}
	x.began = time.Now()
	return x.crew.StartTo(ctx, stdout, x.workload.Client, name, argv...)
}

// runClient runs the workload's client to its end.
func (x *execution) runClient(ctx context.Context, name string, argv []string, stdout io.Writer) (*crew.Process, error) {
	p, err := x.startClient(ctx, name, argv, stdout)
	if err != nil {
		return nil, err
	}
	<-p.Ended()
	x.result.CompletionSeconds = time.Since(x.began).Seconds()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if p.Err() != nil {
		err = p.Failure()
	}
	return p, err
}

// startServer starts the workload's server and waits until it listens. If there are agents, the server always offers
// MPTCP unless its host has none, so that all procedures meet the same server.
func (l *Lab) startServer(ctx context.Context, on crew.Crew) (*crew.Process, error) {
	w := l.Scenario.Workload
	var name string
	var argv []string
	switch w.Kind {
	case scenario.Upload, scenario.Download:
		name, argv = "iperf3", iperfServer(w)
	case scenario.HTTP:
		config, err := l.webConfig(on.Logs)
		if err != nil {
			return nil, err
		}
		name, argv = "nginx", nginx(config)
	case scenario.Stream, scenario.Requests:
		name, argv = "traffic", on.Part(traffic.ServerPart, traffic.Server{Port: w.Port})
	default:
		name = filepath.Base(w.ServerCommand[0])
		argv = expand(w.ServerCommand, netip.AddrPortFrom(l.serverAddr(), uint16(w.Port)), l.serverAddr(), "")
	}
	if server, _ := l.Scenario.Host(w.Server); l.agents.used && server.HasMPTCP() {
		argv = append([]string{l.opts.Programs.DCol, "run", "--"}, argv...)
	}
	server, err := on.Start(ctx, w.Server, name, argv...)
	if err != nil {
		return nil, err
	}
	err = server.Await(ctx, listenLimit, func() error {
		listens, err := listening(l.net.Host(w.Server), w.Port)
		if err != nil {
			return crew.Hopeless(err)
		}
		if !listens {
			return server.Trouble(fmt.Errorf("does not listen on TCP port %d", w.Port))
		}
		return nil
	})
	if err != nil {
		server.Stop()
		return nil, err
	}
	return server, nil
}

// listening reports whether anything listens on a TCP port of a host.
func listening(h *testbed.Host, port int) (bool, error) {
	all, err := testbed.On(h, func() (all []netip.AddrPort, err error) {
		l, err := netstate.OpenListeners()
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		return l.TCP()
	})
	return slices.ContainsFunc(all, func(at netip.AddrPort) bool { return int(at.Port()) == port }), err
}

// writeLog writes a program's standard output to a file beside its log.
func (x *execution) writeLog(name string, data []byte) error {
	if err := os.WriteFile(filepath.Join(x.crew.Logs, name), data, 0o644); err != nil {
		return fmt.Errorf("keep the output of a program: %w", err)
	}
	return nil
}
