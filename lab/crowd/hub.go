package crowd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	collectiveName = "crowd"
	hubName        = "hub"
	startWithin    = 30 * time.Second
)

// Hub is the process of the coordinator.
type Hub struct {
	Dir     string // where its files go: a disk's, as it writes before it promises
	Address string // of this host, at which members reach it
	Log     *slog.Logger

	coordinator *coordinator.Coordinator
	profile     *os.File // that is being written
}

// Run makes a collective and obeys orders for its coordinator until there are no more.
func (h *Hub) Run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	members, err := raiseFiles()
	if err != nil {
		return err
	}
	id, err := h.found()
	if err != nil {
		return err
	}
	listen := net.JoinHostPort(h.Address, "0") // any port that is free
	h.coordinator, err = coordinator.Open(coordinator.Config{
		Dir: h.stateDir(), Identity: id, Listen: listen, BusListen: listen, Addresses: []string{h.Address}, Log: h.Log,
	})
	if err != nil {
		return err
	}
	defer h.coordinator.Close()
	ctx, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- h.coordinator.Run(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ran, h.endProfile())
	}()
	if err := eventually(ctx, startWithin, func() bool { return h.coordinator.Status().Directory != nil }); err != nil {
		return fmt.Errorf("wait until the coordinator is at work: %w", err)
	}
	return obey(ctx, in, out, Ready{Members: members}, h.do)
}

func (h *Hub) stateDir() string { return filepath.Join(h.Dir, "coordinator") }

// found creates the collective, with this host as its first member.
func (h *Hub) found() (*collective.Identity, error) {
	files := filesIn(filepath.Join(h.Dir, hubName))
	request, err := newMember(files, hubName)
	if err != nil {
		return nil, err
	}
	f, err := coordinator.Init(h.stateDir(), coordinator.Founding{Collective: collectiveName, Request: request})
	if err != nil {
		return nil, err
	}
	return install(files, f.Chain, f.Roots, f.Lists)
}

func (h *Hub) do(ctx context.Context, o Order) (any, error) {
	switch o.Do {
	case Invite:
		return h.invite(o.Count)
	case Expel:
		return h.expel(ctx, o.Name)
	case Look:
		s := h.coordinator.Status()
		if s.Directory == nil {
			return nil, errors.New("the directory's store is away")
		}
		return HubState{Members: s.Directory.Members, Revision: s.Directory.Revision, Bytes: s.Directory.Bytes, Busy: s.Counts.Busy}, nil
	case Settle:
		return settle(), nil
	case Profile:
		return nil, errors.Join(h.endProfile(), h.beginProfile(o.File))
	}
	return nil, fmt.Errorf("the coordinator cannot %q", o.Do)
}

func (h *Hub) invite(count int) (any, error) {
	var out Invited
	for range count {
		l, err := h.coordinator.Invite(coordinator.InviteOptions{})
		if err != nil {
			return nil, err
		}
		out.Lines = append(out.Lines, l.String())
	}
	return out, nil
}

func (h *Hub) expel(ctx context.Context, name string) (any, error) {
	out := Expelled{Began: time.Now()}
	if err := h.coordinator.Expel(ctx, name, "to see how fast that is"); err != nil {
		return nil, err
	}
	out.Millis = millis(time.Since(out.Began))
	trust, err := collective.ReadTrust(filepath.Join(h.stateDir(), "ca", "ca.crt"), filepath.Join(h.stateDir(), "ca", "ca.crl"))
	if err != nil {
		return nil, err
	}
	out.Hash = enrol.HashTrust(trust)
	return out, nil
}

func (h *Hub) beginProfile(file string) (err error) {
	if file == "" {
		return nil
	}
	if h.profile, err = os.Create(file); err != nil {
		return fmt.Errorf("profile the coordinator: %w", err)
	}
	return pprof.StartCPUProfile(h.profile)
}

func (h *Hub) endProfile() error {
	if h.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	f := h.profile
	h.profile = nil
	return f.Close()
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// eventually polls until something holds.
func eventually(ctx context.Context, within time.Duration, holds func() bool) error {
	deadline := time.Now().Add(within)
	for !holds() {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v", within)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
