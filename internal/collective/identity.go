package collective

import (
	"cmp"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// Identity is this host's member identity. It follows its files: a replaced certificate, root or revocation
// list counts from the next handshake on; a file that got worse is reported and the last good one kept.
// Its methods may be called from any goroutine; they read files but wait for nothing else.
type Identity struct {
	files  Files
	joined bool // coordinators renew it, and nobody else
	log    *slog.Logger

	taking sync.Mutex // held while files are replaced by what came from elsewhere

	mu    sync.Mutex
	seen  []durable.Stamp
	own   *own
	trust *Trust
	// cutOff: the collective's roots are other ones now, and none of them leads to our certificate.
	cutOff error
	fault  error // what is wrong with the files as they are now
	// unsaved: trust is newer than the files, which could not be written when it was tried last.
	unsaved error
	tried   time.Time
	// disowned is the serial number of the certificate whose holder the collective wants no more.
	disowned string
}

// Load reads and checks an identity. An error names the file and the mend.
func Load(files Files, log *slog.Logger) (*Identity, error) {
	id, err := open(files, log)
	if err == nil {
		err = id.unusable()
	}
	if err != nil {
		return nil, err
	}
	return id, nil
}

// Open is Load for a member that joined, and so renews by itself: a certificate that has ended, or was
// revoked, is no error but told by Usable; and the mend of an error is one that such a host has.
func Open(files Files, log *slog.Logger) (*Identity, error) {
	id, err := open(files, log)
	if err != nil {
		return nil, forJoined(err)
	}
	id.joined = true
	return id, nil
}

func open(files Files, log *slog.Logger) (*Identity, error) {
	id := &Identity{files: files, log: log, seen: files.stamps()}
	roots, err := readRoots(files.CA)
	if err != nil {
		return nil, err
	}
	creds, err := readCredentials(files)
	if err != nil {
		return nil, err
	}
	if id.own, err = creds.under(files, roots); err != nil {
		return nil, err
	}
	lists, err := readLists(files.CRL, roots.certs)
	if err != nil {
		return nil, err
	}
	id.trust = newTrust(roots, lists)
	return id, nil
}

// Name is the member's name.
func (id *Identity) Name() string { return id.Self().Name }

// Self is what others see of this member.
func (id *Identity) Self() Member { return id.current().member }

// Refresh reads what has changed on disk. Handshakes do it by themselves; who keeps sessions open calls
// it now and then, so that a revocation reaches them. It costs four calls of stat when nothing changed.
func (id *Identity) Refresh() {
	id.reread()
	id.save()
}

func (id *Identity) reread() {
	id.mu.Lock()
	defer id.mu.Unlock()
	now := id.files.stamps()
	if slices.Equal(now, id.seen) {
		return
	}
	id.seen = now
	before := id.fault
	id.fault = id.reload(time.Now())
	switch {
	case id.fault != nil:
		id.log.Warn("identity: new files cannot be used, keeping the last good ones", "err", id.fault)
	case before != nil:
		id.log.Info("identity: files can be used again")
	default:
		id.log.Info("identity: using new files", "serial", id.own.member.Serial, "roots", len(id.trust.roots.certs), "revoked", id.trust.lists.total())
	}
}

// reload takes each of two halves that is good: our credentials, and whom we trust. The files of a half
// cannot be replaced in one step, so what does not fit may do so for a moment only: the next change of a
// file brings us back.
func (id *Identity) reload(now time.Time) error {
	creds, credErr := readCredentials(id.files)
	candidate := creds
	if credErr != nil {
		candidate = id.own.credentials
	}
	trust, trustErr := ReadTrust(id.files.CA, id.files.CRL)
	if trustErr == nil {
		trustErr = id.mayTrust(trust, candidate, now)
	}
	if trustErr == nil {
		id.trust, id.unsaved = trust, nil // it is no older than what we could not write
	}
	if credErr == nil {
		credErr = id.use(creds, now)
	}
	if credErr != nil {
		id.cutOff = id.use(id.own.credentials, time.Time{})
	}
	if credErr != nil && trustErr != nil {
		return fmt.Errorf("%w; and %w", credErr, trustErr)
	}
	return errors.Join(credErr, trustErr)
}

// use makes credentials our own if they lead to a root, and are valid at a time that is not zero.
func (id *Identity) use(creds *credentials, now time.Time) error {
	o, err := creds.under(id.files, id.trust.roots)
	if err != nil {
		return err
	}
	if !now.IsZero() {
		if err := o.checkTime(id.files, now); err != nil {
			return err
		}
	}
	id.own, id.cutOff = o, nil
	return nil
}

// mayTrust says whether roots and lists may take the place of those known: neither may go back, and other
// roots must be stated by those before, or have been put there for the certificate that is there: whoever
// can write this host's files decides whom it trusts.
func (id *Identity) mayTrust(t *Trust, creds *credentials, now time.Time) error {
	if err := t.lists.goesBack(id.trust.lists, t.roots, now); err != nil && id.files.CRL != "" {
		return &Error{File: id.files.CRL, Problem: err.Error(), Mend: listsMend}
	}
	err := t.roots.follows(id.trust.roots)
	if err == nil {
		return nil
	}
	_, misfit := creds.under(id.files, t.roots)
	if misfit == nil && !t.roots.olderThan(id.trust.roots) {
		return nil
	}
	return &Error{File: id.files.CA, Problem: "roots cannot be used", Err: err, Mend: rootsMend + "; to change the collective, replace certificate and key, too"}
}

// Problem is why this identity cannot be used now, or why its files as they lie there were not taken;
// nil if all is well. It is for a person who asks about the agent's health. That a certificate does not
// count whose holder was disowned is left to whoever knows why.
func (id *Identity) Problem() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	var unusable error
	if id.disowned != id.own.member.Serial {
		unusable = id.unusable()
	}
	return cmp.Or(unusable, id.unsaved, id.fault)
}

// Disowned notes that the collective, asked to renew the certificate, has said that it wants its holder no
// more. It holds until there is another certificate.
func (id *Identity) Disowned() {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.disowned = id.own.member.Serial
}

// Usable says whether others would accept this identity now; if not, why.
func (id *Identity) Usable() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.unusable()
}

func (id *Identity) unusable() error {
	if id.cutOff != nil {
		return id.cutOff
	}
	now := time.Now()
	if err := id.own.checkTime(id.files, now); err != nil {
		return id.ended(err)
	}
	err := id.trust.Check(id.own.member, now)
	if err == nil {
		return nil
	}
	return id.ended(&Error{
		File: id.files.Certificate, Problem: "is on a revocation list", Err: err,
		Mend: "ask the operator of the collective, who can issue a new one (dcol ca issue --reissue " + id.own.member.Name + ")",
	})
}

// ended gives what ended a certificate the mend for this host. Nobody issues one that joined files by hand.
func (id *Identity) ended(err error) error {
	fault, ok := errors.AsType[*Error](err)
	if !ok || !id.joined || fault.File != id.files.Certificate {
		return err
	}
	joined := *fault
	if errors.Is(err, ErrExpired) {
		joined.Mend = "it is renewed as soon as a coordinator can be reached; or correct this host's clock"
	} else if _, revoked := errors.AsType[*RevokedError](err); revoked {
		joined.Mend = "ask the operator of the collective"
	}
	return &joined
}

// Derive makes a secret for one purpose out of the member's key: the same after a restart, known to
// nobody else (HKDF, RFC 5869).
func (id *Identity) Derive(purpose string) [32]byte {
	out, err := hkdf.Key(sha256.New, id.current().key.Seed(), nil, "dcol "+purpose, 32)
	if err != nil {
		panic(err) // only for lengths over 255 hashes
	}
	return [32]byte(out)
}

func (f Files) stamps() []durable.Stamp {
	return durable.Stamps(f.Certificate, f.Key, f.CA, f.CRL)
}
