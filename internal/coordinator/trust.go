package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	// lookEvery is how soon what the operator does to the authority (dcol ca) is noticed.
	lookEvery = time.Second
	// hashEvery is how soon who has missed a change of trust learns of it.
	hashEvery = 10 * time.Minute
)

// fileStamp changes when a file is replaced.
type fileStamp struct {
	size  int64
	mtime time.Time
	inode uint64
}

// runTrust follows the authority's files and tells all members of changes.
func (c *Coordinator) runTrust(ctx context.Context) {
	next := time.Now()
	for ctx.Err() == nil {
		c.enrolling.Lock()
		err := c.followAuthority()
		c.takeIssued()
		c.enrolling.Unlock()
		if err != nil {
			c.config.Log.Warn("coordinator: the authority's new files are not taken", "err", err)
		}
		m := *c.trust.Load()
		if told := c.told.Load(); told == nil || *told != m.Hash {
			if c.tellTrust(m) == nil {
				next = time.Now().Add(hashEvery)
			}
		} else if !time.Now().Before(next) && c.tellTrust(enrol.TrustMessage{Hash: m.Hash}) == nil {
			next = time.Now().Add(hashEvery)
		}
		every(ctx, lookEvery, c.retold)
	}
}

// tellTrust tells all members what to believe, or its hash if it is too large.
func (c *Coordinator) tellTrust(m enrol.TrustMessage) error {
	data, err := encodeTrust(m)
	if err != nil {
		return err
	}
	if err := c.tellAll(enrol.TopicTrust, data); err != nil {
		return err
	}
	c.told.Store(&m.Hash)
	return nil
}

func encodeTrust(m enrol.TrustMessage) ([]byte, error) {
	data, err := json.Marshal(m)
	if err == nil && len(data) > bus.MaxPayload {
		data, err = json.Marshal(enrol.TrustMessage{Hash: m.Hash})
	}
	if err != nil {
		return nil, fmt.Errorf("write roots and lists: %w", err)
	}
	return data, nil
}

// answerTrust is for who says which roots and lists it has.
func (c *Coordinator) answerTrust(hash string) ([]byte, error) {
	m := *c.trust.Load()
	if hash == m.Hash {
		m.Roots, m.Lists = "", ""
	}
	return encodeTrust(m)
}

// followAuthority reads the authority anew if its files have changed. The caller holds enrolling.
func (c *Coordinator) followAuthority() error {
	now := c.stamps()
	if slices.Equal(now, c.files) {
		return nil
	}
	if err := c.readAuthority(); err != nil {
		return err
	}
	if err := c.withdraw(c.ca); err != nil {
		return err
	}
	c.files = now
	return c.renewOwn() // if another signs now
}

func (c *Coordinator) stamps() (out []fileStamp) {
	for _, name := range []string{"ca.crt", "ca.crl", "ca.key", "signer.crt", "signer.key"} {
		out = append(out, stampOf(filepath.Join(caDir(c.config.Dir), name)))
	}
	return out
}

// readAuthority takes the authority as its files are: its certificate, and what everybody must believe. Our
// own identity learns it first, as it judges records and servers the coordinator's TLS. The caller holds
// enrolling.
func (c *Coordinator) readAuthority() error {
	ca, err := collective.OpenCA(caDir(c.config.Dir))
	if err != nil {
		return err
	}
	t, err := ca.Trust()
	if err != nil {
		return err
	}
	before := c.trust.Load()
	m := enrol.NewTrustMessage(t)
	if before == nil || m.Hash != before.Hash {
		if _, err := c.config.Identity.TakeTrust([]byte(m.Roots), []byte(m.Lists)); err != nil {
			return fmt.Errorf("this host does not take what its own authority says: %w", err)
		}
	}
	c.trust.Store(&m)
	if ca.Key() != c.ca.Key() {
		// Members must have the list of a new signer before they meet what it signs. Those that are not connected
		// hear of it when they connect.
		c.tellTrust(m) //nolint:errcheck // the loop tells it again
	}
	c.ca = ca
	if g := c.gate.Load(); g != nil && before != nil && m.Hash != before.Hash {
		g.retrust()
	}
	poke(c.retold)
	return nil
}

// takeIssued makes members of those to whom the operator has given a certificate by hand (dcol ca issue): their
// names are taken, and they may renew. Whom the coordinator has given one the register knows already. The
// caller holds enrolling.
func (c *Coordinator) takeIssued() {
	now := c.now()
	issued, err := c.ca.IssuedSince(&c.issued, now.Add(-grace))
	if err != nil {
		c.config.Log.Warn("coordinator: some of what was signed cannot be read", "err", err)
	}
	for _, one := range issued {
		if m := c.register.members[one.Name]; m != nil && m.Expelled != nil && m.Key != publicKey(one.Key) && !one.Revoked {
			c.config.Log.Warn("coordinator: a certificate was made by hand for the name of who was expelled; it counts at waypoints until it is revoked (dcol ca revoke)",
				"member", one.Name, "serial", one.Serial)
		}
	}
	entries, _ := c.register.recover(issued, now)
	for _, e := range entries {
		if err := c.save(e); err != nil {
			c.config.Log.Warn("coordinator: who has a certificate by hand is no member yet, trying again", "member", e.Member.Name, "err", err)
			c.issued = collective.Reading{}
			return
		}
		c.config.Log.Info("coordinator: has a certificate by hand, so is a member", "member", e.Member.Name, "until", e.Member.Until)
	}
}

// withdraw expels whom the operator has revoked by hand. This host's own certificate is none of them: it
// could be told to nobody.
func (c *Coordinator) withdraw(ca *collective.CA) error {
	now := c.now()
	issued, err := ca.Issued(now)
	if err != nil {
		return err
	}
	for _, e := range c.register.withdraw(issued, now) {
		if e.Member.Name == c.config.Identity.Name() {
			continue
		}
		if err := c.save(e); err != nil {
			return err
		}
		c.config.Log.Info("coordinator: revoked by hand, so expelled", "member", e.Member.Name)
		poke(c.unfinish)
	}
	return nil
}

func stampOf(path string) (s fileStamp) {
	info, err := os.Stat(path)
	if err != nil {
		return s
	}
	s.size, s.mtime = info.Size(), info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = st.Ino
	}
	return s
}
