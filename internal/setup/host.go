package setup

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Host holds the paths of a member's files.
type Host struct {
	Config string // the agent's configuration, a file
	State  string // the agent's state directory
	Log    *slog.Logger
}

// DefaultState is the state directory of a configuration that sets none.
const DefaultState = "/var/lib/dcol"

// The agent writes its renewed certificate and newer roots and lists, so they are in its state
// directory.
func (h Host) identity() collective.Files {
	in := func(name string) string { return filepath.Join(h.State, "identity", name) }
	return collective.Files{Certificate: in("member.crt"), Key: in("member.key"), CA: in("ca.crt"), CRL: in("ca.crl")}
}

func (h Host) coordinatorDir() string { return filepath.Join(h.State, "coordinator") }

// Membership describes a host's membership in a collective.
type Membership struct {
	Collective string
	Name       string
	Roles      []config.Role
	// Socket is the path of the agent's socket.
	Socket string
}

// Coordinates reports whether the collective was founded here.
func (m Membership) Coordinates() bool {
	return (&config.Config{Roles: m.Roles}).Has(config.RoleCoordinator)
}

// Member returns this host's membership, or nil if it has none. A configuration that does not
// belong to a collective founded or joined here is an error, because it must not be overwritten.
func (h Host) Member() (*Membership, error) {
	c, err := config.Load(h.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("a configuration already exists: %w", err)
	}
	if !c.Collective.Joined() {
		return nil, fmt.Errorf("%s already exists, for the member %s of a collective without a coordinator: to start over, stop the agent and move the file away", h.Config, c.Name)
	}
	id, err := collective.Open(collective.Files{
		Certificate: c.Identity.Certificate, Key: c.Identity.Key, CA: c.Identity.CA, CRL: c.Identity.CRL,
	}, h.Log)
	if err != nil {
		return nil, fmt.Errorf("according to %s this host is a member already, but its identity cannot be used: %w", h.Config, err)
	}
	return &Membership{Collective: id.Self().Collective, Name: c.Name, Roles: c.Roles, Socket: c.Socket()}, nil
}

// lock prevents two commands from running at the same time.
func (h Host) lock() (unlock func(), err error) {
	dir := filepath.Dir(h.identity().Key)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(filepath.Dir(h.Config), 0o755)); err != nil {
		return nil, fmt.Errorf("create the member's directories: %w", err)
	}
	unlock, err = durable.TryLock(dir)
	switch {
	case errors.Is(err, durable.ErrLocked):
		return nil, errors.New("dcol init or dcol join is already running on this host: wait until it has ended")
	case err != nil:
		return nil, fmt.Errorf("make this host a member: %w", err)
	}
	return unlock, nil
}

// request returns a request for a certificate with this name and this host's key. It also returns the networks that the
// member's own network must not overlap.
func (h Host) request(name string) (csr []byte, lans []netip.Prefix, err error) {
	key, err := h.key()
	if err != nil {
		return nil, nil, err
	}
	if csr, err = collective.NewRequest(key, name); err != nil {
		return nil, nil, err
	}
	lans, err = enrol.LANs()
	return csr, lans, err
}

// key returns this host's key. It creates one unless an interrupted command did.
func (h Host) key() (ed25519.PrivateKey, error) {
	path := h.identity().Key
	key, err := collective.NewKey(path)
	if errors.Is(err, collective.ErrExists) {
		return collective.ReadKey(path)
	}
	return key, err
}

// writeIdentity writes the files of the member's identity, the certificate last.
func (h Host) writeIdentity(chain, roots, lists []byte) error {
	files := h.identity()
	for _, f := range []struct {
		path string
		data []byte
	}{{files.CA, roots}, {files.CRL, lists}, {files.Certificate, chain}} {
		if err := durable.Replace(f.path, f.data, 0o644); err != nil {
			return fmt.Errorf("write the member's identity: %w", err)
		}
	}
	return nil
}
