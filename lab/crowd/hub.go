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
	"github.com/detour-collective/dcol/lab/remote"
	"github.com/detour-collective/dcol/lab/stats"
)

const (
	collectiveName = "crowd"
	hubName        = "hub"
	startWithin    = 30 * time.Second
)

// HubPart and MembersPart are the programs of the two processes.
const (
	HubPart     = "crowd-hub"
	MembersPart = "crowd-members"
)

// Hub is the process of the coordinator.
type Hub struct {
	Dir     string // where its files go: a disk's, as it writes before it promises
	Address string // of this host, at which members reach it

	ctx         context.Context
	coordinator *coordinator.Coordinator
	profile     *os.File // that is being written
}

// Run makes a collective and lets others call the methods below, over in and out, until in ends.
func (h *Hub) Run(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) (err error) {
	if _, err := raiseFiles(); err != nil {
		return err
	}
	id, err := h.found()
	if err != nil {
		return err
	}
	listen := net.JoinHostPort(h.Address, "0") // any port that is free
	h.coordinator, err = coordinator.Open(coordinator.Config{
		Dir: h.stateDir(), Identity: id, Listen: listen, BusListen: listen, Addresses: []string{h.Address}, Log: log,
	})
	if err != nil {
		return err
	}
	defer h.coordinator.Close()
	ctx, stop := context.WithCancel(ctx)
	h.ctx = ctx
	ran := make(chan error, 1)
	go func() { ran <- h.coordinator.Run(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ran, h.endProfile())
	}()
	if err := eventually(ctx, startWithin, func() bool { return h.coordinator.Status().Directory != nil }); err != nil {
		return fmt.Errorf("wait until the coordinator is at work: %w", err)
	}
	return remote.Serve(h, in, out)
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

// Capacity replies how many members may be connected, by the limit of open files.
func (h *Hub) Capacity(_ struct{}, members *int) (err error) {
	*members, err = raiseFiles()
	return err
}

// Invite replies a number of invitations.
func (h *Hub) Invite(count int, lines *[]string) error {
	for range count {
		l, err := h.coordinator.Invite(coordinator.InviteOptions{})
		if err != nil {
			return err
		}
		*lines = append(*lines, l.String())
	}
	return nil
}

// Expel expels a member.
func (h *Hub) Expel(name string, out *Expelled) error {
	began := time.Now()
	if err := h.coordinator.Expel(h.ctx, name, "to see how fast that is"); err != nil {
		return err
	}
	took := time.Since(began)
	trust, err := collective.ReadTrust(filepath.Join(h.stateDir(), "ca", "ca.crt"), filepath.Join(h.stateDir(), "ca", "ca.crl"))
	if err != nil {
		return err
	}
	*out = Expelled{Name: name, Began: began, Millis: stats.Milliseconds(took), Hash: enrol.HashTrust(trust)}
	return nil
}

// State describes the coordinator.
func (h *Hub) State(_ struct{}, out *HubState) error {
	s := h.coordinator.Status()
	if s.Directory == nil {
		return errors.New("the directory's store is away")
	}
	*out = HubState{Members: s.Directory.Members, Revision: s.Directory.Revision, Bytes: s.Directory.Bytes, Busy: s.Counts.Busy}
	return nil
}

// Settle gives back memory that is free.
func (h *Hub) Settle(_ struct{}, out *Memory) error {
	*out = settle()
	return nil
}

// Profile writes a profile of the processor's time to a file from now on, or to none.
func (h *Hub) Profile(file string, _ *struct{}) error {
	return errors.Join(h.endProfile(), h.beginProfile(file))
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
