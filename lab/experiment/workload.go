package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// listenLimit limits how long a server may take to listen.
const listenLimit = 10 * time.Second

// execution is one run under way.
type execution struct {
	lab       *Lab
	workload  scenario.Workload
	procedure scenario.Procedure
	dir       string         // for the programs' logs
	target    netip.AddrPort // what the client connects to
	local     netip.Addr     // from where; by default as its kernel chooses
	began     time.Time
	sampler   *sampler
	result    *report.Run
}

// traffic makes the workload's traffic and measures what its program saw of
// it, filling in the result's goodput.
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

// startClient starts the workload's client, with the kind of sockets of the procedure.
func (x *execution) startClient(ctx context.Context, name string, argv []string, stdout io.Writer) (*program, error) {
	if x.procedure.Transport == scenario.MPTCP {
		argv = append([]string{x.lab.opts.Programs.DCol, "run", "--"}, argv...)
	}
	x.began = time.Now()
	return start(ctx, x.lab.net.Host(x.workload.Client), x.dir, name, argv, stdout)
}

// runClient runs the workload's client to its end.
func (x *execution) runClient(ctx context.Context, name string, argv []string, stdout io.Writer) (*program, error) {
	p, err := x.startClient(ctx, name, argv, stdout)
	if err != nil {
		return nil, err
	}
	<-p.ended
	x.result.CompletionSeconds = time.Since(x.began).Seconds()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if p.err != nil {
		err = p.failure()
	}
	return p, err
}

// startServer starts the workload's server and waits until it listens. Where
// there are agents it always offers MPTCP, if its host has that, so that all
// procedures meet the same server.
func (l *Lab) startServer(ctx context.Context, dir string) (*program, error) {
	w := l.Scenario.Workload
	host := l.net.Host(w.Server)
	var name string
	var argv []string
	switch w.Kind {
	case scenario.Upload, scenario.Download:
		name, argv = "iperf3", iperfServer(w)
	case scenario.HTTP:
		config, err := l.webConfig(dir)
		if err != nil {
			return nil, err
		}
		name, argv = "nginx", nginx(config)
	case scenario.Stream, scenario.Requests:
		name, argv = "traffic", trafficServer(l.opts.Programs.Lab, w)
	default:
		name = filepath.Base(w.ServerCommand[0])
		argv = expand(w.ServerCommand, netip.AddrPortFrom(l.serverAddr(), uint16(w.Port)), l.serverAddr())
	}
	if server, _ := l.Scenario.Host(w.Server); l.agents && server.HasMPTCP() {
		argv = append([]string{l.opts.Programs.DCol, "run", "--"}, argv...)
	}
	server, err := start(ctx, host, dir, name, argv, nil)
	if err != nil {
		return nil, err
	}
	err = waitUntil(ctx, listenLimit, 10*time.Millisecond, func() error {
		if !server.running() {
			return hopeless(server.failure())
		}
		listens, err := listening(host.Do, w.Port)
		if err != nil {
			return hopeless(err)
		}
		if !listens {
			return server.trouble(fmt.Errorf("does not listen on TCP port %d", w.Port))
		}
		return nil
	})
	if err != nil {
		server.stop()
		return nil, err
	}
	return server, nil
}

// listening reports whether anything listens on a TCP port where do runs.
func listening(do func(func() error) error, port int) (found bool, err error) {
	const tcpListen = 10 // TCP_LISTEN, include/net/tcp_states.h
	err = do(func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_INET_DIAG)
		if err != nil {
			return fmt.Errorf("open sock_diag: %w", err)
		}
		defer handle.Close()
		for _, family := range []uint8{syscall.AF_INET, syscall.AF_INET6} {
			sockets, err := handle.SocketDiagTCP(family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then it is looked for again
				return fmt.Errorf("list TCP sockets: %w", err)
			}
			for _, s := range sockets {
				found = found || s.State == tcpListen && int(s.ID.SourcePort) == port
			}
		}
		return nil
	})
	return found, err
}

// writeLog keeps what a program wrote to stdout beside its log.
func (x *execution) writeLog(name string, data []byte) error {
	if err := os.WriteFile(filepath.Join(x.dir, name), data, 0o644); err != nil {
		return fmt.Errorf("keep the output of a program: %w", err)
	}
	return nil
}
