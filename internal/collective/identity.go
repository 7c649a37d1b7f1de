package collective

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// Identity is this host's member identity. It follows its files: a replaced certificate or revocation
// list counts from the next handshake on; a file that got worse is reported and the last good one kept.
// Its methods may be called from any goroutine; they read files but wait for nothing else.
type Identity struct {
	files Files
	log   *slog.Logger

	mu      sync.Mutex
	seen    [4]fileStamp
	creds   *credentials
	revoked *revocations
	fault   error // what is wrong with the files as they are now
}

// Load reads and checks an identity. An error names the file and the mend.
func Load(files Files, log *slog.Logger) (*Identity, error) {
	id := &Identity{files: files, log: log, seen: stamps(files)}
	var err error
	if id.creds, err = readCredentials(files); err != nil {
		return nil, err
	}
	if err := id.creds.checkTime(files, time.Now()); err != nil {
		return nil, err
	}
	if id.revoked, err = readRevocations(files, id.creds.ca); err != nil {
		return nil, err
	}
	if err := id.ownRevocation(); err != nil {
		return nil, err
	}
	return id, nil
}

// Name is the member's name.
func (id *Identity) Name() string { return id.Self().Name }

// Self is what others see of this member.
func (id *Identity) Self() Member {
	id.mu.Lock()
	defer id.mu.Unlock()
	m, _ := memberOf(id.creds.leaf) // checked when it was read
	return m
}

// Refresh reads what has changed on disk. Handshakes do it by themselves; who keeps sessions open calls
// it now and then, so that a revocation reaches them. It costs four calls of stat when nothing changed.
func (id *Identity) Refresh() {
	id.mu.Lock()
	defer id.mu.Unlock()
	now := stamps(id.files)
	if now == id.seen {
		return
	}
	id.seen = now
	before := id.fault
	id.fault = id.reload()
	switch {
	case id.fault != nil:
		id.log.Warn("identity: new files not taken, keeping the last good ones", "err", id.fault)
	case before != nil:
		id.log.Info("identity: files are good again")
	default:
		id.log.Info("identity: took new files", "serial", serialText(id.creds.leaf.SerialNumber), "revoked", len(id.revoked.at))
	}
}

// reload takes each of certificate and revocation list that is good. Certificate and key cannot be
// replaced in one step, so a mismatch may be one of a moment: the next change of a file brings us back.
func (id *Identity) reload() error {
	creds, credErr := readCredentials(id.files)
	if credErr == nil {
		credErr = creds.checkTime(id.files, time.Now())
	}
	if credErr != nil {
		creds = id.creds
	}
	sameCA := creds.ca.Equal(id.creds.ca)
	revoked, err := readRevocations(id.files, creds.ca)
	if err == nil && sameCA && revoked.number.Cmp(id.revoked.number) < 0 {
		err = &Error{
			File: id.files.CRL, Problem: fmt.Sprintf("list number %v is older than number %v seen before", revoked.number, id.revoked.number),
			Mend: "copy ca.crl anew from the authority",
		}
	}
	if err != nil {
		if sameCA {
			id.creds = creds
		}
		if credErr != nil {
			return fmt.Errorf("%w; and %w", credErr, err)
		}
		return err
	}
	id.creds, id.revoked = creds, revoked
	return credErr
}

// Problem is why this identity cannot be used now, or why its files as they lie there were not taken;
// nil if all is well. It is for a person who asks about the agent's health.
func (id *Identity) Problem() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.unusable(); err != nil {
		return err
	}
	return id.fault
}

// Usable says whether others would accept this identity now; if not, why.
func (id *Identity) Usable() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.unusable()
}

func (id *Identity) unusable() error {
	if err := id.creds.checkTime(id.files, time.Now()); err != nil {
		return err
	}
	return id.ownRevocation()
}

func (id *Identity) ownRevocation() error {
	serial := serialText(id.creds.leaf.SerialNumber)
	at, revoked := id.revoked.at[serial]
	if !revoked {
		return nil
	}
	name := id.creds.leaf.Subject.CommonName
	return &Error{
		File: id.files.Certificate, Problem: "is on the revocation list", Err: &RevokedError{Name: name, Serial: serial, At: at},
		Mend: "ask the collective's authority why; after that it can issue a new one (dcol ca issue --reissue " + name + ")",
	}
}

// Derive makes a secret for one purpose out of the member's key: the same after a restart, known to
// nobody else (HKDF, RFC 5869).
func (id *Identity) Derive(purpose string) [32]byte {
	id.mu.Lock()
	seed := id.creds.key.Seed()
	id.mu.Unlock()
	out, err := hkdf.Key(sha256.New, seed, nil, "dcol "+purpose, 32)
	if err != nil {
		panic(err) // only for lengths over 255 hashes
	}
	return [32]byte(out)
}

// fileStamp changes when a file is replaced or written.
type fileStamp struct {
	size    int64
	mtime   time.Time
	mode    fs.FileMode
	inode   uint64 // two replacements within one tick of the kernel's clock differ in nothing else
	missing bool
}

func stamps(f Files) (out [4]fileStamp) {
	for i, path := range []string{f.Certificate, f.Key, f.CA, f.CRL} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			out[i].missing = true
			continue
		}
		out[i] = fileStamp{size: info.Size(), mtime: info.ModTime(), mode: info.Mode()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			out[i].inode = st.Ino
		}
	}
	return out
}
