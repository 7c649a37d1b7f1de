package emulink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Link is a pair of TUN devices (IFF_TUN, IFF_NO_PI) and the properties of the link between them.
type Link struct {
	A, B       *os.File
	AtoB, BtoA Params
	MTU        int // largest packet; 0 is DefaultMTU
}

// Wire is a running emulator process. Its methods may be called from any goroutine.
type Wire struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer // read after exited only
	exited chan struct{}
	log    *slog.Logger

	mu         sync.Mutex // one request at a time; guards the rest
	requests   io.WriteCloser
	encode     *json.Encoder
	decode     *json.Decoder
	closing    bool
	scheduling string
}

// exitGrace limits how long Close waits for the process to exit before it kills it.
const exitGrace = 5 * time.Second

// Start runs an emulator process that carries packets between the devices of each link. It has its own copies
// of the files. The seed makes loss and jitter repeatable: the n-th packet of a direction always has the same
// fate. The calling program's main must call Stage. ctx bounds only the start.
func Start(ctx context.Context, links []Link, seed uint64, log *slog.Logger) (*Wire, error) {
	req := startRequest{Seed: seed}
	w := &Wire{exited: make(chan struct{}), log: log}
	w.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{stageName}, Dir: "/",
		// A terminal's Ctrl-C is for the caller only.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	for i, l := range links {
		for _, p := range []Params{l.AtoB, l.BtoA} {
			if err := p.Validate(); err != nil {
				return nil, fmt.Errorf("start wire: link %d: %w", i, err)
			}
		}
		setup := linkSetup{AtoB: l.AtoB, BtoA: l.BtoA, MTU: l.MTU}
		if setup.MTU == 0 {
			setup.MTU = DefaultMTU
		}
		req.Links = append(req.Links, setup)
		w.cmd.ExtraFiles = append(w.cmd.ExtraFiles, l.A, l.B)
	}
	if err := w.spawn(); err != nil {
		return nil, fmt.Errorf("start wire: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { w.cmd.Process.Kill() })
	resp, err := w.ask(request{Start: &req})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start wire: %w", err), w.Close())
	}
	w.scheduling = resp.Scheduling
	return w, nil
}

func (w *Wire) spawn() error {
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		return err
	}
	answers, stdout, err := os.Pipe()
	if err != nil {
		return err
	}
	w.cmd.Stdout, w.cmd.Stderr = stdout, &w.stderr
	err = w.cmd.Start()
	stdout.Close()
	if err != nil {
		answers.Close()
		return err
	}
	w.requests, w.encode, w.decode = stdin, json.NewEncoder(stdin), json.NewDecoder(answers)
	go func() {
		defer close(w.exited)
		err := w.cmd.Wait()
		answers.Close()
		w.mu.Lock()
		closing := w.closing
		w.mu.Unlock()
		if !closing {
			w.log.Error("the wire has ended by itself", "err", err, "stderr", w.stderr.String())
		}
	}()
	return nil
}

// ask sends a request and waits for the response.
func (w *Wire) ask(req request) (response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var resp response
	err := w.encode.Encode(req)
	if err == nil {
		err = w.decode.Decode(&resp)
	}
	if err != nil {
		return response{}, fmt.Errorf("ask the wire process: %w", err)
	}
	if resp.Error != "" {
		return response{}, errors.New(resp.Error)
	}
	return resp, nil
}

// Set changes both directions of a link.
func (w *Wire) Set(link int, ab, ba Params) error {
	if err := errors.Join(ab.Validate(), ba.Validate()); err != nil {
		return err
	}
	_, err := w.ask(request{Set: &setRequest{Link: link, AtoB: ab, BtoA: ba}})
	return err
}

// Down makes a link drop everything, including packets in flight, or ends that.
func (w *Wire) Down(link int, down bool) error {
	_, err := w.ask(request{Down: &downRequest{Link: link, Down: down}})
	return err
}

// Stats returns a link's counters since the start or the last Reset.
func (w *Wire) Stats(link int) (ab, ba Stats, err error) {
	resp, err := w.ask(request{Stats: &link})
	return resp.AtoB, resp.BtoA, err
}

// Reset sets the counters of all links to zero.
func (w *Wire) Reset() error {
	_, err := w.ask(request{Reset: true})
	return err
}

// Scheduling describes the priority of the emulator's thread: SCHED_FIFO, or what was permitted instead and
// why.
func (w *Wire) Scheduling() string { return w.scheduling }

// Close ends the process.
func (w *Wire) Close() error {
	w.mu.Lock()
	w.closing = true
	err := w.requests.Close()
	w.mu.Unlock()
	if errors.Is(err, os.ErrClosed) {
		err = nil // it has exited already
	}
	timer := time.AfterFunc(exitGrace, func() { w.cmd.Process.Kill() })
	defer timer.Stop()
	<-w.exited
	if !w.cmd.ProcessState.Success() {
		return errors.Join(err, fmt.Errorf("the wire ended with %v: %s", w.cmd.ProcessState,
			strings.TrimSpace(w.stderr.String())))
	}
	return err
}
