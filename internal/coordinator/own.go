package coordinator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// renewSignerBefore is how long before its end a signer is renewed, if the root is here.
const renewSignerBefore = 60 * 24 * time.Hour

// authorities are those whose keys are here: the one that signs now, the root if it was not carried away,
// and those that have signed before.
func (c *Coordinator) authorities() []*collective.CA {
	all := []*collective.CA{c.ca}
	before, _ := filepath.Glob(filepath.Join(c.config.Dir, "old", "*")) // the pattern is good
	for _, dir := range append(before, rootDir(c.config.Dir)) {
		ca, err := collective.OpenCA(dir)
		switch {
		case err == nil:
			all = append(all, ca)
		case !errors.Is(err, fs.ErrNotExist):
			c.config.Log.Warn("coordinator: an authority cannot be used", "err", err)
		}
	}
	return all
}

func (c *Coordinator) renewOwnNow() error {
	c.enrolling.Lock()
	defer c.enrolling.Unlock()
	return c.renewOwn()
}

// renewOwn renews what nobody else can: this host's certificate, as it is this coordinator that renews
// certificates, and after it was off for longer than one lasts nobody would believe it any more; and the
// signer's. The caller holds enrolling.
func (c *Coordinator) renewOwn() error {
	now := c.now()
	if err := c.renewSigner(now); err != nil {
		return err
	}
	id := c.config.Identity
	self := id.Self()
	if now.Before(collective.RenewAt(self.NotBefore, self.NotAfter, 0)) && self.Issuer.Key == c.ca.Key() && id.Usable() == nil {
		return nil
	}
	request, err := id.RenewalRequest()
	if err != nil {
		return fmt.Errorf("renew the coordinator's own certificate: %w", err)
	}
	parsed, err := collective.ParseRequest(request)
	if err != nil {
		return fmt.Errorf("renew the coordinator's own certificate: %w", err)
	}
	// The register may have forgotten it, if it was off for very long.
	m := member{Name: self.Name, Key: publicKey(self.Key), Subnet: self.Subnet, Joined: now.UTC()}
	if known := c.register.members[self.Name]; known != nil && known.Key == m.Key {
		m = *known
	}
	m.Until = now.Add(collective.MemberValidity).UTC()
	if err := c.save(entry{Member: &m}); err != nil {
		return fmt.Errorf("renew the coordinator's own certificate: %w", err)
	}
	signed, err := c.ca.Sign(parsed, collective.Terms{Name: m.Name, Subnet: m.Subnet})
	if err == nil {
		err = id.TakeCertificate(signed.Chain)
	}
	if err != nil {
		return fmt.Errorf("renew the coordinator's own certificate: %w", err)
	}
	c.config.Log.Info("coordinator: its own certificate is renewed", "until", signed.Member.NotAfter)
	return nil
}

// renewSigner has the root renew the signer in time, and warns if it is not here. The caller holds enrolling.
func (c *Coordinator) renewSigner(now time.Time) error {
	if now.Before(c.ca.NotAfter().Add(-renewSignerBefore)) {
		return nil
	}
	if _, err := os.Lstat(rootDir(c.config.Dir)); errors.Is(err, fs.ErrNotExist) {
		c.config.Log.Warn("coordinator: what signs certificates ends soon: bring the root, and renew it (dcol ca renew)",
			"authority", c.ca.Subject(), "until", c.ca.NotAfter())
		return nil
	}
	root, err := collective.OpenCA(rootDir(c.config.Dir))
	if err != nil {
		return fmt.Errorf("renew the signer: %w", err)
	}
	renewed, err := root.RenewSigner(c.ca.Certificate())
	if err != nil {
		return err
	}
	next, err := c.ca.TakeSigner(renewed)
	if err != nil {
		return err
	}
	c.ca = next
	c.config.Log.Info("coordinator: the signer is renewed", "until", next.NotAfter())
	return c.readAuthority()
}
