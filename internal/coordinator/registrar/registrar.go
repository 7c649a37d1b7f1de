// Package registrar admits hosts (admit.go), renews certificates and expels members (expel.go). It asks the register to
// decide, writes the decision to the disk, and signs, all under one lock. So after the decision to expel a member, no
// certificate or JWT is made for it before its present ones are revoked.
//
// signer.go has the authority that signs. authority.go follows changes that the operator makes to it by hand (dcol ca).
package registrar

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/register"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/ratelimit"
)

// The files of a coordinator's directory.

// RootDir returns the folder of the collective's root, which may be stored elsewhere.
func RootDir(dir string) string { return filepath.Join(dir, "root") }

// CADir returns the folder of the authority that signs certificates.
func CADir(dir string) string { return filepath.Join(dir, "ca") }

// RegisterFile returns the path of the register.
func RegisterFile(dir string) string { return filepath.Join(dir, "register") }

// Config holds a registrar's directory, and its connections to the rest of the coordinator. The registrar calls the
// functions while it is locked.
type Config struct {
	Dir       string
	Identity  *collective.Identity
	Authority *bus.Authority // makes JWTs
	Clock     func() time.Time
	Log       *slog.Logger

	// Coordinators and BusServers return the addresses that members get.
	Coordinators, BusServers func() []enrol.Endpoint
	// Shown returns a member's certificate as its record in the directory shows it.
	Shown func(name string) (collective.Member, bool)
	// Announce sends new roots and lists to all members that are connected.
	Announce func(enrol.TrustMessage) error
	// Recheck is called when this host has other roots or lists.
	Recheck func()
	// Withdrawn gets a value after a member has left, or was expelled because the operator has revoked its certificates by
	// hand.
	Withdrawn chan<- struct{}
}

// Registrar is an open register with the authority that signs. It is safe for concurrent use.
type Registrar struct {
	config  Config
	trust   atomic.Pointer[enrol.TrustMessage]
	changed chan struct{} // has a value after trust has changed

	mu       sync.Mutex
	register *register.Register
	file     *register.File
	signer   *signer
	renewals *ratelimit.Limits
	banned   map[string]time.Time // members that get no JWT until then
	problems []string             // what was damaged when it was opened
	unsaved  bool                 // the register has members that its file lacks, because the disk was full
}

// Open reads the directory. It repairs a damaged register as far as possible. Summary.Problems lists what was damaged.
func Open(c Config) (*Registrar, error) {
	r := &Registrar{
		config: c, changed: make(chan struct{}, 1), register: register.New(rand.IntN),
		renewals: ratelimit.New(RenewalBurst, renewalEvery), banned: map[string]time.Time{},
	}
	var err error
	if r.signer, err = openSigner(c.Dir, c.Log); err != nil {
		return nil, fmt.Errorf("open the collective's authority: %w", err)
	}
	if self := c.Identity.Self(); self.Collective != r.signer.ca.Name() {
		return nil, fmt.Errorf("this host is a member of %q, and %s is the authority of %q: the coordinator must be a member of its own collective",
			self.Collective, CADir(c.Dir), r.signer.ca.Name())
	}
	if err := r.openRegister(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// openRegister reads the register, and adds signed certificates that it lacks.
func (r *Registrar) openRegister() error {
	file, damage, err := register.Open(RegisterFile(r.config.Dir), r.signer.ca.Name(), r.register)
	if err != nil {
		return err
	}
	r.file = file
	now := r.config.Clock()
	issued, err := r.signer.issuedByAll(now.Add(-register.Grace))
	if err != nil {
		return fmt.Errorf("compare the register with what was signed: %w", err)
	}
	recovered, lost := r.register.Recover(issued, now)
	for i := range recovered {
		r.register.Apply(&recovered[i])
		r.config.Log.Warn("coordinator: the register lacked a member's certificate", "member", recovered[i].Member.Name)
	}
	if lost {
		damage.Add(true, "members whose certificates were signed here were missing in the register")
	}
	restored, err := r.signer.takeLists(r.config.Identity.Trust())
	if err != nil {
		return err
	}
	if restored {
		damage.Add(true, "%s", whatRestored)
	}
	if damage.Lost {
		void := r.register.VoidInvitations()
		for i := range void {
			r.register.Apply(&void[i])
		}
		damage.Add(true, "open invitations are void: make new ones")
	}
	r.problems = damage.What
	for _, what := range damage.What {
		r.config.Log.Error("coordinator: the register was damaged", "damage", what)
	}
	if damage.Lost || len(recovered) > 0 {
		switch err := r.file.Rewrite(r.register); {
		case err == nil:
		case damage.Lost || !errors.Is(err, syscall.ENOSPC):
			return err
		default: // a recovered member is one in any case, by its certificate
			r.unsaved = true
			r.config.Log.Warn("coordinator: the disk is full; members that the register lacked are written to it when there is room", "err", err)
		}
	}
	return r.readAuthority() // Follow looks again, for certificates revoked meanwhile
}

// whatRestored is the message after an operator has restored an older copy of the coordinator's directory. This host
// still has newer data as a member. Its revocation lists are taken over, because members refuse a list with an older
// number. The members' directory gets a new epoch, because members ignore changes whose revisions they have seen. The
// register lacks members that have joined since the copy was made. They show their certificates when they renew.
const whatRestored = "an older copy of the coordinator's directory was restored: revocations since then were taken from this host's own lists, " +
	"open invitations are void, and members that joined since are added again when they renew, within a day or two. " +
	"Until then invite nobody, because their names and subnets could be assigned twice. Repeat expulsions since then"

// Close closes the register's file.
func (r *Registrar) Close() {
	if r.file != nil {
		r.file.Close()
	}
}

// save writes entries, then applies them. The caller holds mu.
func (r *Registrar) save(entries ...register.Entry) error {
	if err := r.file.Save(r.register, entries...); err != nil {
		return err
	}
	if r.file.Due() {
		if err := r.file.Rewrite(r.register); err != nil {
			r.config.Log.Warn("coordinator: the register cannot be rewritten and keeps growing", "err", err)
		}
	}
	return nil
}

// saveLater writes the entries that the file lacks, if the disk has room again. The caller holds mu.
func (r *Registrar) saveLater() {
	if !r.unsaved || r.file.Rewrite(r.register) != nil {
		return
	}
	r.unsaved = false
	r.config.Log.Info("coordinator: the register has been written, with the members that it lacked")
}

// Sweep forgets memberships and invitations that ended long ago.
func (r *Registrar) Sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.config.Clock()
	if err := r.save(r.register.Sweep(now)...); err != nil {
		r.config.Log.Warn("coordinator: expired entries cannot be removed from the register", "err", err)
	}
	for name, until := range r.banned {
		if now.After(until) {
			delete(r.banned, name)
		}
	}
}

// Members returns all members, including expelled ones, sorted by name.
func (r *Registrar) Members() []*register.Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.register.Members()
}

// IsMember reports whether there is a member with this name that was not expelled.
func (r *Registrar) IsMember(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.register.Member(name).IsMember()
}

// Summary describes the register and the authority.
type Summary struct {
	Collective  string
	Authority   string    // name of the signer; of the collective, if its root signs
	Until       time.Time // end of the authority's own certificate
	Members     int
	Expelled    int
	Unfinished  []string // expelled, but not all members were told
	Invitations int      // open ones
	Problems    []string
}

// Summary returns the present state.
func (r *Registrar) Summary() Summary {
	now := r.config.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	ca := r.signer.ca
	s := Summary{
		Collective: ca.Name(), Authority: ca.Subject(), Until: ca.NotAfter(), Unfinished: r.register.Unfinished(),
		Invitations: r.register.OpenInvitations(now), Problems: append([]string(nil), r.problems...),
	}
	if r.unsaved {
		s.Problems = append(s.Problems, "members' certificates were signed and are not in the register's file, because the disk is full: free some space")
	}
	for _, m := range r.register.Members() {
		if err := r.unrevoked(m.Name, now); err != nil {
			s.Problems = append(s.Problems, err.Error())
		}
		switch {
		case m.IsMember():
			s.Members++
		case !m.Expelled.Left:
			s.Expelled++
		}
	}
	return s
}
