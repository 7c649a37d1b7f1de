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

// Identity is this host's identity as a member. It follows its files: a replaced certificate, root or
// revocation list takes effect with the next handshake. If a file becomes invalid, Identity reports it and
// keeps the last good one. Its methods may be called from any goroutine. They read files but wait for
// nothing else.
type Identity struct {
	files  Files
	joined bool // coordinators renew the certificate
	log    *slog.Logger

	taking sync.Mutex // held while received files replace the present ones

	mu    sync.Mutex
	seen  []durable.Stamp
	own   *own
	trust *Trust
	// cutOff is set if the collective's roots have changed and none of them leads to our certificate.
	cutOff error
	fault  error // the problem with the present files
	// unsaved is the last error of writing the files. While it is set, trust is newer than the files.
	unsaved error
	tried   time.Time
	// disowned is the serial number of a certificate that the collective refuses to renew because its holder
	// was expelled.
	disowned string
}

// Load reads and checks an identity. Errors name the file and how to fix the problem.
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

// Open is like Load, for a member that joined and renews its own certificate. An expired or revoked
// certificate is not an error; Usable reports it. The advice in errors is for such a host.
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

// Name returns the member's name.
func (id *Identity) Name() string { return id.Self().Name }

// Self returns this member as others see it.
func (id *Identity) Self() Member { return id.current().member }

// Refresh reads changed files. Handshakes do so themselves. Callers that keep sessions open call it regularly,
// so that revocations take effect on them. If nothing has changed, it costs four calls of stat.
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

// reload reads the two parts, our credentials and the trust, and uses each one that is valid. The files of a
// part cannot be replaced in one step, so they may not match for a moment. The next change of a file triggers
// another reload.
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
		id.trust, id.unsaved = trust, nil // it is not older than the unsaved one
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

// use makes creds our own if they lead to a root. If now is not zero, they must also be valid then.
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

// mayTrust checks that roots and lists may replace the known ones. Neither may be older. New roots must be
// signed by the earlier ones, or match the certificate on disk: whoever can write this host's files decides
// whom it trusts.
func (id *Identity) mayTrust(t *Trust, creds *credentials, now time.Time) error {
	if err := t.lists.goesBack(id.trust.lists, t.roots, now); err != nil && id.files.CRL != "" {
		return &Error{File: id.files.CRL, Problem: err.Error(), Fix: listsFix}
	}
	err := t.roots.follows(id.trust.roots)
	if err == nil {
		return nil
	}
	_, misfit := creds.under(id.files, t.roots)
	if misfit == nil && !t.roots.olderThan(id.trust.roots) {
		return nil
	}
	return &Error{File: id.files.CA, Problem: "roots cannot be used", Err: err, Fix: rootsFix + "; to change the collective, replace certificate and key, too"}
}

// Problem returns the reason why this identity cannot be used now, or why its present files were not used. It
// returns nil if all is well. It is for the agent's status. It does not report an expulsion: the caller knows
// the reason for that.
func (id *Identity) Problem() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	var unusable error
	if id.disowned != id.own.member.Serial {
		unusable = id.unusable()
	}
	return cmp.Or(unusable, id.unsaved, id.fault)
}

// Disowned records that the collective refused to renew the certificate because its holder was expelled. It
// applies until there is another certificate.
func (id *Identity) Disowned() {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.disowned = id.own.member.Serial
}

// Usable returns an error if others would not accept this identity now.
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
		Fix: "ask the operator of the collective, who can issue a new one (dcol ca issue --reissue " + id.own.member.Name + ")",
	})
}

// ended adds advice for this host to an error about an expired or revoked certificate. A host that joined gets no
// files by hand.
func (id *Identity) ended(err error) error {
	fault, ok := errors.AsType[*Error](err)
	if !ok || !id.joined || fault.File != id.files.Certificate {
		return err
	}
	joined := *fault
	if errors.Is(err, ErrExpired) {
		joined.Fix = "it is renewed as soon as a coordinator can be reached; or correct this host's clock"
	} else if _, revoked := errors.AsType[*RevokedError](err); revoked {
		joined.Fix = "ask the operator of the collective"
	}
	return &joined
}

// Derive derives a secret for one purpose from the member's key (HKDF, RFC 5869). It is the same after a
// restart, and known to nobody else.
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
