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
	"github.com/detour-collective/dcol/internal/coordinator/register"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/durable"
)

// Founding describes a new collective.
type Founding struct {
	Collective string
	Request    []byte         // of the first member, the coordinator: made by collective.NewRequest
	LANs       []netip.Prefix // networks of its host
}

// Founded holds the first member's identity, which must be in files before Open.
type Founded struct {
	Member collective.Member
	Chain  []byte // PEM, as are the others: the certificate, and the signer's
	Roots  []byte // ca.crt
	Lists  []byte // ca.crl
}

// Init makes a collective in a directory where there is none: a root, a signer under it, keys for the bus, and a first
// member. It works in DIR.new, which becomes the directory at the end. After a crash the next Init starts over.
func Init(dir string, f Founding) (*Founded, error) {
	request, err := collective.ParseRequest(f.Request)
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	if _, err := os.Lstat(registrar.CADir(dir)); err == nil {
		return nil, &collective.Error{File: dir, Problem: "a collective", Err: collective.ErrExists, Fix: "use it, or choose another directory"}
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
		err = moveDir(next, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	return out, nil
}

// InitAgain returns the result of an earlier Init again, with another certificate. It is for a caller that was
// interrupted before it wrote the files. The request must be the same.
func InitAgain(dir string, f Founding) (*Founded, error) {
	request, err := collective.ParseRequest(f.Request)
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	ca, err := collective.OpenCA(registrar.CADir(dir))
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	other := func(what string) error {
		return &collective.Error{File: dir, Problem: what, Err: collective.ErrExists, Fix: "move that folder away to make another collective; it makes its holder the coordinator of that one"}
	}
	if ca.Name() != f.Collective {
		return nil, other("the collective " + ca.Name())
	}
	issued, err := ca.Issued(time.Now().Add(-register.Grace))
	if err != nil {
		return nil, fmt.Errorf("make the collective %s: %w", f.Collective, err)
	}
	for _, c := range slices.Backward(issued) {
		if c.Key == request.Key() && c.Name == request.Name() && !c.Revoked {
			return sign(ca, request, collective.Terms{Name: c.Name, Subnet: c.Subnet})
		}
	}
	return nil, other("the collective " + f.Collective + ", with another first member than " + request.Name())
}

// moveDir renames a directory. An empty one may have the name.
func moveDir(next, dir string) error {
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("%w: it must be empty, or not exist", err)
	}
	if err := os.Rename(next, dir); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(dir))
}

func found(dir string, request *collective.SigningRequest, f Founding) (*Founded, error) {
	root, err := collective.InitCA(registrar.RootDir(dir), f.Collective)
	if err != nil {
		return nil, err
	}
	signer, err := root.NewSigner(registrar.CADir(dir))
	if err != nil {
		return nil, err
	}
	if _, err := bus.InitAuthority(busDir(dir), f.Collective); err != nil {
		return nil, err
	}
	if err := register.Create(registrar.RegisterFile(dir), f.Collective); err != nil {
		return nil, err
	}
	r := register.New(rand.IntN)
	file, _, err := register.Open(registrar.RegisterFile(dir), f.Collective, r)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	m, e, err := r.Place(register.Applicant{Name: request.Name(), Key: request.Key(), LANs: f.LANs}, time.Now())
	if err == nil {
		err = file.Save(r, *e)
	}
	if err != nil {
		return nil, err
	}
	return sign(signer, request, collective.Terms{Name: m.Name, Subnet: m.Subnet})
}

// sign signs the first member's certificate.
func sign(ca *collective.CA, request *collective.SigningRequest, terms collective.Terms) (*Founded, error) {
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
