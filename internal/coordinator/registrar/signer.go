package registrar

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/durable"
)

// renewSignerBefore is the remaining validity at which a signer is renewed, if the root is here.
const renewSignerBefore = 60 * 24 * time.Hour

// signer is the authority that signs certificates, and the files of the other authorities in the coordinator's
// directory.
type signer struct {
	dir    string
	log    *slog.Logger
	ca     *collective.CA
	issued collective.Reading // position in ca's records of signed certificates, up to which they were read
	files  []durable.Stamp    // of ca's files, when they were read last
}

func openSigner(dir string, log *slog.Logger) (*signer, error) {
	ca, err := collective.OpenCA(CADir(dir))
	if err != nil {
		return nil, err
	}
	return &signer{dir: dir, log: log, ca: ca}, nil
}

// all returns the authorities whose keys are here: ca, the root if it is here, and former signers.
func (s *signer) all() []*collective.CA {
	all := []*collective.CA{s.ca}
	before, _ := filepath.Glob(filepath.Join(s.dir, "old", "*")) // the pattern is well-formed
	for _, dir := range append(before, RootDir(s.dir)) {
		ca, err := collective.OpenCA(dir)
		switch {
		case err == nil:
			all = append(all, ca)
		case !errors.Is(err, fs.ErrNotExist):
			s.log.Warn("coordinator: an authority cannot be used", "err", err)
		}
	}
	return all
}

// issuedByAll returns the certificates that all authorities here have signed and that ended after since.
func (s *signer) issuedByAll(since time.Time) (issued []collective.IssuedCertificate, err error) {
	for _, ca := range s.all() {
		var some []collective.IssuedCertificate
		if ca == s.ca {
			some, err = s.newlyIssued(since)
		} else {
			some, err = ca.Issued(since)
		}
		if err != nil {
			return nil, err
		}
		issued = append(issued, some...)
	}
	return issued, nil
}

// newlyIssued returns the certificates that ca has signed since the last call.
func (s *signer) newlyIssued(since time.Time) ([]collective.IssuedCertificate, error) {
	return s.ca.IssuedSince(&s.issued, since)
}

// takeLists takes the revocation lists in trust, and reports whether the authority's own list was older.
func (s *signer) takeLists(trust *collective.Trust) (older bool, err error) {
	at, err := s.ca.Trust()
	if err != nil || !trust.NewerList(at, s.ca.Key()) {
		return false, err
	}
	if _, err := s.ca.TakeTrust(nil, trust.Lists()); err != nil {
		return true, fmt.Errorf("an older copy of the coordinator's directory was restored, and the later revocation lists in this host's own files cannot be used: %w", err)
	}
	return true, nil
}

// revoke revokes the certificates that authorities have signed for a member, and returns the end of the last one.
func (s *signer) revoke(all []*collective.CA, name string, reason collective.Reason) (last time.Time, err error) {
	for _, ca := range all {
		revoked, err := ca.Revoke(name, reason)
		if errors.Is(err, collective.ErrNotIssued) {
			continue
		}
		if err != nil {
			return last, err
		}
		for _, r := range revoked {
			if r.NotAfter.After(last) {
				last = r.NotAfter
			}
		}
		if ca != s.ca {
			t, err := ca.Trust()
			if err == nil {
				_, err = s.ca.TakeTrust(nil, t.Lists())
			}
			if err != nil {
				return last, fmt.Errorf("take the root's revocation list: %w", err)
			}
		}
	}
	return last, nil
}

// revokeAll revokes a member's certificates. The last one ends at until. If the records lack that one, they are
// damaged, or another authority has signed it. Then revokeAll revokes the certificate that the member shows, if it
// shows one, and others may be valid until counts.
func (s *signer) revokeAll(name string, reason collective.Reason, until, now time.Time, shown func(string) (collective.Member, bool)) (counts time.Time, err error) {
	all := s.all()
	last, err := s.revoke(all, name, reason)
	if err != nil {
		return counts, err
	}
	if end := s.ca.NotAfter(); end.Before(until) {
		until = end // a certificate ends no later than its signer's
	}
	if !last.Before(until.Add(-time.Minute)) || !now.Before(until) {
		return counts, nil
	}
	s.log.Error("coordinator: the records of what was signed lack a member's certificates", "member", name, "until", until)
	certificate, there := shown(name)
	if !there {
		return until, nil
	}
	for _, ca := range all {
		if ca.Key() != certificate.Issuer.Key {
			continue
		}
		if err := ca.AddIssued(certificate); err != nil {
			return counts, err
		}
		_, err = s.revoke(all, name, reason)
		break
	}
	return until, err
}

// renew lets the root renew the signer when it is due, and reports whether it did. If the root is not here, it logs a
// warning.
func (s *signer) renew(now time.Time) (renewed bool, err error) {
	if now.Before(s.ca.NotAfter().Add(-renewSignerBefore)) {
		return false, nil
	}
	if _, err := os.Lstat(RootDir(s.dir)); errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("coordinator: the certificate of the authority that signs certificates expires soon: bring the root here and renew it (dcol ca renew)",
			"authority", s.ca.Subject(), "until", s.ca.NotAfter())
		return false, nil
	}
	root, err := collective.OpenCA(RootDir(s.dir))
	if err != nil {
		return false, fmt.Errorf("renew the signer: %w", err)
	}
	certificate, err := root.RenewSigner(s.ca.Certificate())
	if err != nil {
		return false, err
	}
	next, err := s.ca.TakeSigner(certificate)
	if err != nil {
		return false, err
	}
	s.ca = next
	s.log.Info("coordinator: the signer is renewed", "until", next.NotAfter())
	return true, nil
}

// stamps returns the stamps of ca's files.
func (s *signer) stamps() []durable.Stamp {
	var paths []string
	for _, name := range []string{"ca.crt", "ca.crl", "ca.key", "signer.crt", "signer.key"} {
		paths = append(paths, filepath.Join(CADir(s.dir), name))
	}
	return durable.Stamps(paths...)
}
