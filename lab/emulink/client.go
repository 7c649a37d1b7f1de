package emulink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/lab/remote"
)

// Link describes a link: a pair of TUN devices (IFF_TUN, IFF_NO_PI) and the properties of the link between them.
type Link struct {
	A, B       *os.File
	AtoB, BtoA Params
	MTU        int // largest packet; 0 is DefaultMTU
	EndA, EndB End
	Radio      Radio
}

// Emulator is a running emulator process. Its methods may be called from any goroutine.
type Emulator struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer // may be read only after exited
	exited chan struct{}
	log    *slog.Logger

	remote     *remote.Client
	closing    atomic.Bool
	scheduling string
}

// exitGrace limits how long Close waits for the process to exit before it kills it.
const exitGrace = 5 * time.Second

// Start runs an emulator process that carries packets between the devices of each link. The process has its own copies
// of the files. The seed makes loss and jitter repeatable: the n-th packet of a direction always has the same fate. The
// main function of the calling program must call Stage. ctx limits only the start.
func Start(ctx context.Context, links []Link, seed uint64, log *slog.Logger) (*Emulator, error) {
	req := StartRequest{Seed: seed}
	e := &Emulator{exited: make(chan struct{}), log: log}
	e.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{stageName}, Dir: "/",
		// A terminal's Ctrl-C reaches only the caller.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	for i, l := range links {
		if err := errors.Join(l.AtoB.Validate(), l.BtoA.Validate(), l.Radio.Validate()); err != nil {
			return nil, fmt.Errorf("start the link emulator: link %d: %w", i, err)
		}
		req.Links = append(req.Links, LinkSetup{AtoB: l.AtoB, BtoA: l.BtoA, MTU: cmp.Or(l.MTU, DefaultMTU), EndA: l.EndA, EndB: l.EndB, Radio: l.Radio})
		e.cmd.ExtraFiles = append(e.cmd.ExtraFiles, l.A, l.B)
	}
	if err := e.spawn(); err != nil {
		return nil, fmt.Errorf("start the link emulator: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { e.cmd.Process.Kill() })
	err := e.call("Start", req, &e.scheduling)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the link emulator: %w", err), e.Close())
	}
	return e, nil
}

func (e *Emulator) spawn() error {
	stdin, err := e.cmd.StdinPipe()
	if err != nil {
		return err
	}
	answers, stdout, err := os.Pipe()
	if err != nil {
		return err
	}
	e.cmd.Stdout, e.cmd.Stderr = stdout, &e.stderr
	err = e.cmd.Start()
	stdout.Close()
	if err != nil {
		answers.Close()
		return err
	}
	e.remote = remote.NewClient(stdin, answers)
	go func() {
		defer close(e.exited)
		err := e.cmd.Wait()
		answers.Close()
		if !e.closing.Load() {
			e.log.Error("the link emulator has ended by itself", "err", err, "stderr", e.stderr.String())
		}
	}()
	return nil
}

func (e *Emulator) call(method string, args, reply any) error {
	if err := e.remote.Call(method, args, reply); err != nil {
		return fmt.Errorf("ask the link emulator: %w", err)
	}
	return nil
}

// Set changes the parameters of both directions of a link.
func (e *Emulator) Set(link int, ab, ba Params) error {
	if err := errors.Join(ab.Validate(), ba.Validate()); err != nil {
		return err
	}
	return e.call("Set", SetRequest{Link: link, AtoB: ab, BtoA: ba}, nil)
}

// Down starts or stops dropping all packets on a link, including those in flight.
func (e *Emulator) Down(link int, down bool) error {
	return e.call("Down", DownRequest{Link: link, Down: down}, nil)
}

// SetStation changes what happens to packets at a host. An End of a link must name the host.
func (e *Emulator) SetStation(s Station) error { return e.call("SetStation", s, nil) }

// Stats returns a link's counters since the start or the last Reset.
func (e *Emulator) Stats(link int) (ab, ba Stats, err error) {
	var both [2]Stats
	err = e.call("Stats", link, &both)
	return both[0], both[1], err
}

// Reset sets the counters of all links to zero.
func (e *Emulator) Reset() error { return e.call("Reset", struct{}{}, nil) }

// Scheduling describes the priority of the emulator's thread: SCHED_FIFO, or what the system permitted instead and why.
func (e *Emulator) Scheduling() string { return e.scheduling }

// Close ends the emulator process.
func (e *Emulator) Close() error {
	e.closing.Store(true)
	err := e.remote.Close()
	timer := time.AfterFunc(exitGrace, func() { e.cmd.Process.Kill() })
	defer timer.Stop()
	<-e.exited
	if !e.cmd.ProcessState.Success() {
		return errors.Join(err, fmt.Errorf("the link emulator ended with %v: %s", e.cmd.ProcessState, strings.TrimSpace(e.stderr.String())))
	}
	return err
}
