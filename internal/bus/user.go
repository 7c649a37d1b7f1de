package bus

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/detour-collective/dcol/internal/collective"
)

// maxUserLife bounds the validity of a JWT, and so the time for which revocations must be kept.
const maxUserLife = 90 * 24 * time.Hour

// maxSubscriptions is more than a member needs: messages to all, messages to it, answers.
const maxSubscriptions = 8

// MemberJWT returns a JWT that lets a member use the bus until its certificate expires, for 90 days at most. key is the
// certificate's key.
func (a *Authority) MemberJWT(name string, key ed25519.PublicKey, until time.Time) (string, error) {
	return a.userJWT(a.account, name, key, until, jwt.Permissions{
		Pub: jwt.Permission{Allow: jwt.StringList{fromPrefix + name + ".>"}},
		Sub: jwt.Permission{Allow: jwt.StringList{allPrefix + ">", toPrefix + name + ".>", inbox(name) + ".>"}},
	}, jwt.NatsLimits{Subs: maxSubscriptions, Data: jwt.NoLimit, Payload: MaxPayload})
}

// Life returns the start and the end of a JWT's validity.
func Life(userJWT string) (from, until time.Time, err error) {
	claims, err := jwt.DecodeUserClaims(userJWT)
	if err != nil {
		return from, until, fmt.Errorf("read a JWT: %w", err)
	}
	return time.Unix(claims.IssuedAt, 0), time.Unix(claims.Expires, 0), nil
}

// CoordinatorJWT returns a JWT that lets a coordinator exchange messages with all members, and use JetStream.
func (a *Authority) CoordinatorJWT(name string, key ed25519.PublicKey, until time.Time) (string, error) {
	return a.userJWT(a.account, name, key, until, jwt.Permissions{
		Pub: jwt.Permission{Allow: jwt.StringList{allPrefix + ">", toPrefix + ">", inboxPrefix + ">", "$JS.>", "$KV.>"}},
		Sub: jwt.Permission{Allow: jwt.StringList{fromPrefix + ">", inbox(name) + ".>"}},
	}, jwt.NatsLimits{Subs: jwt.NoLimit, Data: jwt.NoLimit, Payload: jwt.NoLimit})
}

// SystemJWT returns a JWT that lets a coordinator send the account to the servers of an external cluster.
func (a *Authority) SystemJWT(name string, key ed25519.PublicKey, until time.Time) (string, error) {
	return a.userJWT(a.system, name, key, until, jwt.Permissions{
		Pub: jwt.Permission{Allow: jwt.StringList{claimsUpdate}},
		Sub: jwt.Permission{Allow: jwt.StringList{inbox(name) + ".>"}},
	}, jwt.NatsLimits{Subs: maxSubscriptions, Data: jwt.NoLimit, Payload: jwt.NoLimit})
}

func (a *Authority) userJWT(account nkeys.KeyPair, name string, key ed25519.PublicKey, until time.Time, permissions jwt.Permissions, limits jwt.NatsLimits) (string, error) {
	if err := collective.CheckName(name); err != nil { // a '*' in it would be everybody
		return "", fmt.Errorf("make a JWT: %w", err)
	}
	user, err := nkeys.Encode(nkeys.PrefixByteUser, key)
	if err != nil {
		return "", fmt.Errorf("make a JWT for %s: %w", name, err)
	}
	now := time.Now()
	if !until.After(now) {
		return "", fmt.Errorf("make a JWT for %s: %w on %s", name, collective.ErrExpired, until.UTC().Format("2006-01-02 15:04 UTC"))
	}
	if last := now.Add(maxUserLife); until.After(last) {
		until = last
	}
	a.outwait(string(user))
	claims := jwt.NewUserClaims(string(user))
	claims.Name = name
	claims.Expires = until.Unix()
	claims.Permissions = permissions
	claims.NatsLimits = limits
	claims.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess} // of an external server; of the embedded one
	return encodeClaims(claims, account)
}

// outwait waits until the second has passed in which the user's earlier JWTs were revoked. NATS compares whole seconds, and
// would treat a JWT made within that second as revoked.
func (a *Authority) outwait(user string) {
	a.mu.Lock()
	at, revoked := a.state.Revoked[user]
	a.mu.Unlock()
	if revoked {
		time.Sleep(time.Until(at.Truncate(time.Second).Add(time.Second)))
	}
}
