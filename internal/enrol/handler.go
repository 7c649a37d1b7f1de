package enrol

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// Service answers requests. An error that is not a *Refusal is logged, and the client gets Unavailable. The methods are
// called from several goroutines.
type Service interface {
	Join(context.Context, JoinRequest) (*Welcome, error)
	// Renew gets the key that the client has authenticated with in the TLS handshake, and the certificates that it
	// has shown there (DER).
	Renew(context.Context, collective.PublicKey, [][]byte, RenewRequest) (*Welcome, error)
	// Leave gets the key that the client has authenticated with. It may be called again.
	Leave(context.Context, collective.PublicKey) error
	Trust(context.Context) (*TrustMessage, error)
}

// NewHandler returns the HTTP handler for a service. It must be served with ServerTLS.
func NewHandler(s Service, now func() time.Time, log *slog.Logger) http.Handler {
	h := &handler{service: s, now: now, log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathJoin, h.join)
	mux.HandleFunc("POST "+pathRenew, h.renew)
	mux.HandleFunc("POST "+pathLeave, h.leave)
	mux.HandleFunc("GET "+pathTrust, h.trust)
	mux.HandleFunc("GET "+pathTime, func(w http.ResponseWriter, _ *http.Request) { h.answer(w, answer{}) })
	return mux
}

type handler struct {
	service Service
	now     func() time.Time
	log     *slog.Logger
}

func (h *handler) join(w http.ResponseWriter, r *http.Request) {
	var request JoinRequest
	if !h.read(w, r, &request) {
		return
	}
	welcome, err := h.service.Join(r.Context(), request)
	h.finish(w, r, answer{Welcome: welcome}, err)
}

func (h *handler) renew(w http.ResponseWriter, r *http.Request) {
	var request RenewRequest
	if !h.read(w, r, &request) {
		return
	}
	key, err := provenKey(r)
	if err != nil {
		h.finish(w, r, answer{}, err)
		return
	}
	var chain [][]byte
	for _, cert := range r.TLS.PeerCertificates {
		chain = append(chain, cert.Raw)
	}
	welcome, err := h.service.Renew(r.Context(), key, chain, request)
	h.finish(w, r, answer{Welcome: welcome}, err)
}

func (h *handler) leave(w http.ResponseWriter, r *http.Request) {
	var request LeaveRequest
	if !h.read(w, r, &request) {
		return
	}
	key, err := provenKey(r)
	if err == nil {
		err = h.service.Leave(r.Context(), key)
	}
	h.finish(w, r, answer{Left: err == nil}, err)
}

// provenKey returns the key that the client has authenticated with.
func provenKey(r *http.Request) (collective.PublicKey, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return collective.PublicKey{}, Refuse(Malformed, "this needs the member's certificate in the TLS handshake")
	}
	key, ok := ed25519Key(r.TLS.PeerCertificates[0])
	if !ok {
		return collective.PublicKey{}, Refuse(Malformed, "the certificate in the TLS handshake is not a member's")
	}
	return key, nil
}

func (h *handler) trust(w http.ResponseWriter, r *http.Request) {
	t, err := h.service.Trust(r.Context())
	h.finish(w, r, answer{Trust: t}, err)
}

func (h *handler) read(w http.ResponseWriter, r *http.Request, into any) bool {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		h.finish(w, r, answer{}, Refuse(Malformed, "the request cannot be read: %v", err))
		return false
	}
	return true
}

func (h *handler) finish(w http.ResponseWriter, r *http.Request, a answer, err error) {
	if err == nil {
		h.answer(w, a)
		return
	}
	refusal, ok := errors.AsType[*Refusal](err)
	if ok {
		h.log.Info("enrol: refused", "path", r.URL.Path, "from", r.RemoteAddr, "reason", string(refusal.Reason), "why", refusal.Why)
	} else {
		h.log.Error("enrol: cannot answer", "path", r.URL.Path, "from", r.RemoteAddr, "err", err)
		refusal = Refuse(Unavailable, "the coordinator cannot do this now: see its log")
	}
	h.answer(w, answer{Refusal: refusal})
}

func (h *handler) answer(w http.ResponseWriter, a answer) {
	a.Time = h.now().UTC()
	text, err := json.Marshal(a)
	if err != nil {
		h.log.Error("enrol: write an answer", "err", err)
		http.Error(w, "the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status())
	w.Write(text) //nolint:errcheck // the client is gone, and asks again
}

func (a *answer) status() int {
	if a.Refusal == nil {
		return http.StatusOK
	}
	switch a.Refusal.Reason {
	case Malformed:
		return http.StatusBadRequest
	case TooMany:
		return http.StatusTooManyRequests
	case Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusForbidden
	}
}
