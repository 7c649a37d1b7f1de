package coordinator

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
)

// Founding is what a new collective is to be.
type Founding struct {
	Collective string
	Request    []byte         // of the first member, which is the coordinator: as collective.NewRequest makes it
	LANs       []netip.Prefix // that its host is in
}

// Founded is the first member's identity, to be put into files before Open.
type Founded struct {
	Member collective.Member
	Chain  []byte // PEM, as are the others: a certificate and the signer's,
	Roots  []byte // ca.crt
	Lists  []byte // ca.crl
}

// Init makes a collective in a directory where there is none: a root, a signer under it, keys for the bus,
// and a first member. It makes all of it aside and puts it there at the end, so that a crash leaves nothing
// that has to be cleaned up but DIR.new, which the next Init replaces.
func Init(dir string, f Founding) (*Founded, error) {
	request, err := collective.ParseRequest(f.Request)
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	if _, err := os.Lstat(caDir(dir)); err == nil {
		return nil, &collective.Error{File: dir, Problem: "a collective", Err: collective.ErrExists, Mend: "use it, or choose another directory"}
	}
	next := filepath.Clean(dir) + ".new"
	if err := os.RemoveAll(next); err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	if err := os.MkdirAll(next, 0o700); err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	out, err := found(next, request, f)
	if err == nil {
		err = place(next, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	return out, nil
}

// InitAgain is for who was interrupted after Init, before Founded was written down: the same request gets
// another certificate out of what was made then.
func InitAgain(dir string, f Founding) (*Founded, error) {
	request, err := collective.ParseRequest(f.Request)
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	ca, err := collective.OpenCA(caDir(dir))
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	other := func(what string) error {
		return &collective.Error{File: dir, Problem: what, Err: collective.ErrExists, Mend: "move that folder away to make another collective; who has it is the coordinator of that one"}
	}
	if ca.Name() != f.Collective {
		return nil, other("the collective " + ca.Name())
	}
	issued, err := ca.Issued(time.Now().Add(-grace))
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	for _, c := range slices.Backward(issued) {
		if c.Key == request.Key() && c.Name == request.Name() && !c.Revoked {
			return admit(ca, request, collective.Terms{Name: c.Name, Subnet: c.Subnet})
		}
	}
	return nil, other("the collective " + f.Collective + ", with another first member than " + request.Name())
}

// place moves a whole directory to its name, which may be an empty one.
func place(next, dir string) error {
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("%w: it must be empty, or not exist", err)
	}
	if err := os.Rename(next, dir); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}

func found(dir string, request *collective.SigningRequest, f Founding) (*Founded, error) {
	root, err := collective.InitCA(rootDir(dir), f.Collective)
	if err != nil {
		return nil, err
	}
	signer, err := root.NewSigner(caDir(dir))
	if err != nil {
		return nil, err
	}
	if _, err := bus.InitAuthority(busDir(dir), f.Collective); err != nil {
		return nil, err
	}
	if err := createStore(registerFile(dir), f.Collective); err != nil {
		return nil, err
	}
	r := newRegister(rand.IntN)
	s, _, err := openStore(registerFile(dir), f.Collective, r.apply)
	if err != nil {
		return nil, err
	}
	defer s.close()
	m, e, err := r.place(joining{Name: request.Name(), Key: publicKey(request.Key()), LANs: f.LANs}, time.Now())
	if err == nil {
		err = s.append(*e)
	}
	if err != nil {
		return nil, err
	}
	return admit(signer, request, collective.Terms{Name: m.Name, Subnet: m.Subnet})
}

// admit signs, and puts together what the first member needs.
func admit(ca *collective.CA, request *collective.SigningRequest, terms collective.Terms) (*Founded, error) {
	signed, err := ca.Sign(request, terms)
	if err != nil {
		return nil, err
	}
	trust, err := ca.Trust()
	if err != nil {
		return nil, err
	}
	return &Founded{Member: signed.Member, Chain: signed.Chain, Roots: trust.Roots(), Lists: trust.Lists()}, nil
}
