package bus

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/durable"
)

// authorityFile holds everything an Authority keeps. It is one file so that it can be replaced as a whole.
const authorityFile = "bus.json"

// Authority decides who may use the bus. It keeps the keys of NATS's chain of trust (operator, account, user) in the
// coordinator's directory, and which members' JWTs are revoked. It is safe for concurrent use, and several processes may
// use one directory.
type Authority struct {
	dir      string
	operator nkeys.KeyPair
	account  nkeys.KeyPair
	system   nkeys.KeyPair

	mu    sync.Mutex
	state authorityState
}

// authorityState is the content of the file.
type authorityState struct {
	Collective string `json:"collective"`
	// Seeds in NATS's own notation (SO..., SA...).
	Operator string `json:"operator"`
	Account  string `json:"account"`
	System   string `json:"system"`
	// Revoked maps a user's public key (U...) to a time: JWTs issued before it are revoked.
	Revoked map[string]time.Time `json:"revoked,omitempty"`
}

// InitAuthority creates the keys for the collective's bus in dir. It returns an error if there are keys already,
// because new ones would cut off every member.
func InitAuthority(dir, collectiveName string) (*Authority, error) {
	if err := collective.CheckCollective(collectiveName); err != nil {
		return nil, fmt.Errorf("make the bus's keys: %w", err)
	}
	path := filepath.Join(dir, authorityFile)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the bus's keys: %w", err)
	}
	unlock, err := durable.Lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Lstat(path); err == nil {
		return nil, &collective.Error{File: path, Problem: "keys of a bus", Err: collective.ErrExists, Fix: "use them, or choose another directory"}
	}
	state := authorityState{Collective: collectiveName}
	for _, k := range []struct {
		seed *string
		make func() (nkeys.KeyPair, error)
	}{{&state.Operator, nkeys.CreateOperator}, {&state.Account, nkeys.CreateAccount}, {&state.System, nkeys.CreateAccount}} {
		pair, err := k.make()
		if err != nil {
			return nil, fmt.Errorf("make a key of the bus: %w", err)
		}
		seed, err := pair.Seed()
		if err != nil {
			return nil, fmt.Errorf("make a key of the bus: %w", err)
		}
		*k.seed = string(seed)
	}
	a, err := newAuthority(dir, state)
	if err != nil {
		return nil, err
	}
	if err := a.write(); err != nil {
		return nil, err
	}
	return a, nil
}

// OpenAuthority opens the keys that InitAuthority created in dir.
func OpenAuthority(dir string) (*Authority, error) {
	state, err := readAuthority(dir)
	if err != nil {
		return nil, err
	}
	a, err := newAuthority(dir, state)
	if err != nil {
		return nil, damagedAuthority(dir, err)
	}
	return a, nil
}

func newAuthority(dir string, state authorityState) (*Authority, error) {
	a := &Authority{dir: dir, state: state}
	for _, k := range []struct {
		pair *nkeys.KeyPair
		seed string
		kind nkeys.PrefixByte
	}{{&a.operator, state.Operator, nkeys.PrefixByteOperator}, {&a.account, state.Account, nkeys.PrefixByteAccount}, {&a.system, state.System, nkeys.PrefixByteAccount}} {
		kind, _, err := nkeys.DecodeSeed([]byte(k.seed))
		if err != nil {
			return nil, fmt.Errorf("read a key of the bus: %w", err)
		}
		if kind != k.kind {
			return nil, fmt.Errorf("read a key of the bus: it is of kind %v, wanted %v", kind, k.kind)
		}
		if *k.pair, err = nkeys.FromSeed([]byte(k.seed)); err != nil {
			return nil, fmt.Errorf("read a key of the bus: %w", err)
		}
	}
	return a, nil
}

// Revoke revokes the JWTs for a member's key that were issued until now. It returns the account's new JWT, which the
// caller must pass to Server.SetAccount or System.SetAccount; these cut the member's connections. JWTs issued later are
// valid, so a member that is admitted again needs no new key.
func (a *Authority) Revoke(key ed25519.PublicKey) (accountJWT string, err error) {
	user, err := nkeys.Encode(nkeys.PrefixByteUser, key)
	if err != nil {
		return "", fmt.Errorf("revoke a key: %w", err)
	}
	unlock, err := durable.Lock(a.dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	state, err := readAuthority(a.dir) // another process may have revoked one meanwhile
	if err != nil {
		return "", err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if state.Operator != a.state.Operator || state.Account != a.state.Account {
		return "", &collective.Error{File: filepath.Join(a.dir, authorityFile), Problem: "holds other keys than when it was opened", Fix: "start the coordinator anew"}
	}
	now := time.Now()
	if state.Revoked == nil {
		state.Revoked = map[string]time.Time{}
	}
	state.Revoked[string(user)] = now
	// JWTs that were issued earlier have expired.
	maps.DeleteFunc(state.Revoked, func(_ string, at time.Time) bool { return now.Sub(at) > maxUserLife+time.Hour })
	a.state = state
	if err := a.write(); err != nil {
		return "", err
	}
	return a.accountJWT()
}

// AccountJWT returns the account's JWT, which lists revoked keys. Servers use it to decide who may connect.
func (a *Authority) AccountJWT() (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.accountJWT()
}

func (a *Authority) accountJWT() (string, error) {
	claims := jwt.NewAccountClaims(publicKey(a.account))
	claims.Name = a.state.Collective
	claims.Limits.DisallowBearer = true
	claims.Limits.LeafNodeConn = 0
	// A few streams of some megabytes are enough; members cannot reach them.
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{
		DiskStorage: maxStore, Streams: 16, Consumer: jwt.NoLimit, MaxAckPending: jwt.NoLimit,
	}
	for user, at := range a.state.Revoked {
		claims.RevokeAt(user, at)
	}
	return encodeClaims(claims, a.operator)
}

// maxStore bounds the bytes that a coordinator stores. It is many times what 100,000 members need.
const maxStore = 1 << 30

func (a *Authority) systemJWT() (string, error) {
	claims := jwt.NewAccountClaims(publicKey(a.system))
	claims.Name = "system of " + a.state.Collective
	claims.Limits.DisallowBearer = true
	return encodeClaims(claims, a.operator)
}

func (a *Authority) operatorClaims() *jwt.OperatorClaims {
	claims := jwt.NewOperatorClaims(publicKey(a.operator))
	claims.Name = a.state.Collective
	claims.SystemAccount = publicKey(a.system)
	return claims
}

func encodeClaims(claims jwt.Claims, by nkeys.KeyPair) (string, error) {
	text, err := claims.Encode(by)
	if err != nil {
		return "", fmt.Errorf("sign a JWT of the bus: %w", err)
	}
	return text, nil
}

// publicKey returns a key in NATS's notation. It cannot fail for a pair made from a seed.
func publicKey(pair nkeys.KeyPair) string {
	text, _ := pair.PublicKey()
	return text
}

// write replaces the file atomically.
func (a *Authority) write() (err error) {
	data, err := json.MarshalIndent(a.state, "", "\t")
	if err != nil {
		return fmt.Errorf("write the bus's keys: %w", err)
	}
	return durable.Replace(filepath.Join(a.dir, authorityFile), append(data, '\n'), 0o600)
}

func readAuthority(dir string) (authorityState, error) {
	path := filepath.Join(dir, authorityFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return authorityState{}, &collective.Error{File: path, Problem: "the bus has no keys", Err: err, Fix: "put back a copy of it; if there never was a collective here, make one: dcol init NAME"}
	}
	if err != nil {
		return authorityState{}, fmt.Errorf("read the bus's keys: %w", err)
	}
	var state authorityState
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&state); err != nil {
		return authorityState{}, damagedAuthority(dir, err)
	}
	return state, nil
}

func damagedAuthority(dir string, err error) error {
	return &collective.Error{File: filepath.Join(dir, authorityFile), Problem: "is damaged", Err: err, Fix: "put back a copy of it"}
}
