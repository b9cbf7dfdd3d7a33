package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	maxRequests = 256 // at a time on one connection
	stopTime    = 4 * time.Second
)

type role string

const (
	roleAgent    role = "agent"
	roleVerifier role = "verifier"
)

// hello is what envd says of the environment. The runner takes it as a claim.
type hello struct {
	Protocol      int     `json:"protocol"`
	Instance      string  `json:"instance"`
	Role          role    `json:"role"`
	PID           int     `json:"pid"`
	UID           uint32  `json:"uid"`
	GID           uint32  `json:"gid"`
	User          *string `json:"user"`
	Home          *string `json:"home"`
	Path          *string `json:"path"`
	Cwd           string  `json:"cwd"`
	Shell         *string `json:"shell"`
	OS            string  `json:"os"`
	Arch          string  `json:"arch"`
	HasPasswd     bool    `json:"has_passwd"`
	CanSwitchUser bool    `json:"can_switch_user"`
}

// server answers the requests of both runners.
type server struct {
	exec         *executor
	files        *fileStore
	processes    *processTable
	terminating  atomic.Bool // after SIGTERM
	shutdown     chan struct{}
	shutdownOnce sync.Once
	endContainer atomic.Bool
}

// operation carries out one request; the value it returns becomes the "ok" of the result.
type operation func(s *server, req *request, body []byte) (any, error)

var operations = map[string]operation{
	"exec":      (*server).opExec,
	"kill":      (*server).opKill,
	"put":       decoded(func(s *server, req *request, p putParams) (any, error) { return s.files.put(req.in, p) }),
	"write":     decoded(func(s *server, req *request, p writeParams) (any, error) { return s.files.write(req.in, p) }),
	"get":       decoded(func(s *server, req *request, p getParams) (any, error) { return s.files.get(req.stream(streamOut), p) }),
	"stat":      decoded(func(s *server, _ *request, p pathParams) (any, error) { return s.files.stat(p) }),
	"mkdir":     decoded(func(s *server, _ *request, p mkdirParams) (any, error) { return s.files.mkdir(p) }),
	"remove":    decoded(func(s *server, _ *request, p pathParams) (any, error) { return s.files.remove(p) }),
	"empty":     decoded(func(s *server, _ *request, p emptyParams) (any, error) { return s.files.empty(p) }),
	"changed":   decoded(func(s *server, _ *request, p changedParams) (any, error) { return s.files.changed(p) }),
	"cut-links": decoded(func(s *server, _ *request, p cutLinksParams) (any, error) { return s.files.cutLinks(p) }),
	"usage":     decoded(func(s *server, _ *request, p usageParams) (any, error) { return s.files.usage(p) }),
	"processes": func(s *server, _ *request, _ []byte) (any, error) { return s.processes.list(s.exec.running.snapshot()) },
	"shutdown":  (*server).opShutdown,
}

func decoded[P any](run func(s *server, req *request, params P) (any, error)) operation {
	return func(s *server, req *request, body []byte) (any, error) {
		var params P
		if err := json.Unmarshal(body, &params); err != nil {
			return nil, failf(kindBadRequest, "parameters: %w", err)
		}
		return run(s, req, params)
	}
}

func (s *server) opExec(req *request, body []byte) (any, error) {
	var params execParams
	if err := json.Unmarshal(body, &params); err != nil {
		return nil, failf(kindBadRequest, "parameters: %w", err)
	}
	return s.exec.run(req.ctx, req, params)
}

func (s *server) opKill(req *request, body []byte) (any, error) {
	var params struct {
		Exec         uint32  `json:"exec"`
		GraceSeconds float64 `json:"grace_seconds"`
	}
	if err := json.Unmarshal(body, &params); err != nil {
		return nil, failf(kindBadRequest, "parameters: %w", err)
	}
	grace, err := seconds(params.GraceSeconds, "grace_seconds")
	if err != nil {
		return nil, err
	}
	target := req.conn.find(params.Exec)
	if target != nil {
		select {
		case target.kill <- min(grace, maxGrace):
		default: // is being killed already
		}
	}
	return map[string]bool{"running": target != nil}, nil
}

func (s *server) opShutdown(req *request, body []byte) (any, error) {
	if req.conn.role != roleVerifier {
		return nil, failf(kindRefused, "only the verifier may shut the environment down")
	}
	var params struct {
		EndContainer bool `json:"end_container"`
	}
	if err := json.Unmarshal(body, &params); err != nil {
		return nil, failf(kindBadRequest, "parameters: %w", err)
	}
	s.endContainer.Store(params.EndContainer)
	return map[string]bool{}, nil
}

// conn is the connection to one runner.
type conn struct {
	role role
	file io.ReadWriteCloser

	writing sync.Mutex
	scratch []byte

	mu       sync.Mutex
	requests map[uint32]*request
	active   sync.WaitGroup
}

func newConn(role role, file io.ReadWriteCloser) *conn {
	return &conn{role: role, file: file, requests: map[uint32]*request{}}
}

// request is one open request of a connection.
type request struct {
	id   uint32
	conn *conn
	ctx  context.Context
	end  context.CancelFunc
	in   *inbox
	out  [3]*credit         // by stream; 0 is not used
	kill chan time.Duration // grace
}

// stream is a writer that sends what is written, as fast as the runner takes it.
func (r *request) stream(number byte) io.Writer {
	return &streamWriter{request: r, number: number}
}

type streamWriter struct {
	request *request
	number  byte
}

func (w *streamWriter) Write(data []byte) (int, error) {
	written := 0
	for written < len(data) {
		n, err := w.request.out[w.number].take(w.request.ctx, min(len(data)-written, maxChunkBytes))
		if err != nil {
			return written, failf(kindCancelled, "the runner cancelled the transfer")
		}
		if err := w.request.conn.send(frameData, w.request.id, []byte{w.number}, data[written:written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// send writes one frame. Only the runner's own requests wait when it does not read.
func (c *conn) send(kind frameType, id uint32, parts ...[]byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.scratch = appendFrame(c.scratch[:0], kind, id, parts...)
	if _, err := c.file.Write(c.scratch); err != nil {
		return fmt.Errorf("send to the %s: %w", c.role, err)
	}
	if cap(c.scratch) > 2*maxChunkBytes {
		c.scratch = nil
	}
	return nil
}

func (c *conn) find(id uint32) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests[id]
}

func (c *conn) sendJSON(kind frameType, id uint32, value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("encode for the %s: %w", c.role, err)
	}
	if limit := payloadLimits[kind]; text.Len() > int(limit) {
		return fmt.Errorf("encode for the %s: %d bytes, limit %d", c.role, text.Len(), limit)
	}
	return c.send(kind, id, text.Bytes())
}

// serve reads frames until the connection ends, then ends what still runs for it and returns when that is gone.
func (s *server) serve(c *conn) error {
	ctx, cancel := context.WithCancel(context.Background())
	err := s.readFrames(ctx, c)
	cancel()
	c.file.Close()
	c.mu.Lock()
	for _, req := range c.requests {
		req.in.finish(io.ErrUnexpectedEOF)
	}
	c.mu.Unlock()
	c.active.Wait()
	return err
}

func (s *server) readFrames(ctx context.Context, c *conn) error {
	for {
		f, err := readFrame(c.file)
		if err != nil {
			return err
		}
		if err := s.handle(ctx, c, f); err != nil {
			return err
		}
	}
}

// handle acts on one frame. It does not wait for anything that depends on the runner, so that one request cannot block another.
func (s *server) handle(ctx context.Context, c *conn, f frame) error {
	if f.kind == frameRequest {
		return s.open(ctx, c, f)
	}
	req := c.find(f.id)
	switch f.kind {
	case frameData:
		if len(f.payload) < 1 || f.payload[0] != streamIn {
			return fmt.Errorf("%w: data for a stream that does not run to envd", errViolation)
		}
		if req != nil {
			return req.in.push(f.payload[1:])
		}
	case frameEOF:
		if req != nil {
			req.in.finish(io.EOF)
		}
	case frameCredit:
		stream, n, err := parseCredit(f.payload)
		if err != nil {
			return err
		}
		if stream != streamOut && stream != streamErr {
			return fmt.Errorf("%w: credit for stream %d", errViolation, stream)
		}
		if req != nil {
			return req.out[stream].give(n)
		}
	case frameCancel:
		if req != nil {
			req.in.finish(failf(kindCancelled, "the runner cancelled the transfer"))
			req.end()
		}
	default:
		return fmt.Errorf("%w: frame type %d from a runner", errViolation, f.kind)
	}
	return nil
}

// open registers a request and starts its operation.
func (s *server) open(ctx context.Context, c *conn, f frame) error {
	c.mu.Lock()
	_, taken := c.requests[f.id]
	full := len(c.requests) >= maxRequests
	if taken || f.id == 0 {
		c.mu.Unlock()
		return fmt.Errorf("%w: request id %d is in use", errViolation, f.id)
	}
	req := &request{id: f.id, conn: c, kill: make(chan time.Duration, 1)}
	req.ctx, req.end = context.WithCancel(ctx)
	req.out[streamOut], req.out[streamErr] = newCredit(), newCredit()
	req.in = newInbox(func(n int) {
		// An error here is seen by the reader of the connection as well.
		_ = c.send(frameCredit, req.id, []byte{streamIn, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	})
	if !full {
		c.requests[f.id] = req
	}
	c.active.Add(1)
	c.mu.Unlock()

	go func() {
		defer c.active.Done()
		var value any
		var name string
		err := failf(kindTooMany, "more than %d requests at a time", maxRequests)
		if !full {
			name, value, err = s.perform(req, f.payload)
		}
		req.end()
		// The id is free again before the runner can know that the request is over.
		c.mu.Lock()
		if c.requests[f.id] == req {
			delete(c.requests, f.id)
		}
		c.mu.Unlock()
		req.in.finish(io.EOF)
		s.answer(c, req.id, value, err)
		if name == "shutdown" && err == nil {
			s.shutdownOnce.Do(func() { close(s.shutdown) })
		}
	}()
	return nil
}

func (s *server) answer(c *conn, id uint32, value any, err error) {
	result := map[string]any{"ok": value}
	if err != nil {
		result = map[string]any{"error": toWire(err)}
	}
	if sendErr := c.sendJSON(frameResult, id, result); sendErr != nil {
		logf("request %d: %v", id, sendErr)
	}
}

// perform runs the operation of a request. A panic is an error of this request, never the end of envd: the evidence of a trial is behind it.
func (s *server) perform(req *request, body []byte) (name string, value any, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = failf(kindInternal, "envd: %v", problem)
		}
	}()
	var head struct {
		Op string `json:"op"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return "", nil, failf(kindBadRequest, "request: %w", err)
	}
	run, known := operations[head.Op]
	if !known {
		return head.Op, nil, failf(kindBadRequest, "unknown operation %q", head.Op)
	}
	if s.terminating.Load() && req.conn.role == roleAgent && head.Op != "kill" {
		return head.Op, nil, failf(kindRefused, "the environment is being stopped: %s is refused", head.Op)
	}
	value, err = run(s, req, body)
	return head.Op, value, err
}

// serveBoth serves the agent and the verifier until the verifier is done, and returns envd's exit code: 0 after a shutdown.
//
// An agent that goes away only loses its own commands. After a SIGTERM, the verifier has termTime to finish.
func (s *server) serveBoth(agent, verifier *conn, terminate <-chan os.Signal, termTime time.Duration) int {
	agentDone, verifierDone := make(chan error, 1), make(chan error, 1)
	go func() { agentDone <- s.serve(agent) }()
	go func() { verifierDone <- s.serve(verifier) }()

	code := 1
	var deadline <-chan time.Time
	agentOpen, verifierOpen := true, true
	for waiting := true; waiting; {
		select {
		case err := <-agentDone:
			agentOpen = false
			logEnd(agent, err)
		case err := <-verifierDone:
			verifierOpen = false
			logEnd(verifier, err)
			waiting = false
		case <-s.shutdown:
			code, waiting = 0, false
		case <-terminate:
			if !s.terminating.Swap(true) {
				logf("SIGTERM: the agent's requests are refused, the verifier has %s", termTime)
				deadline = time.After(termTime)
			}
		case <-deadline:
			logf("the verifier did not finish within %s of SIGTERM", termTime)
			waiting = false
		}
	}

	// A shutdown has priority when the verifier closes its end right after it.
	select {
	case <-s.shutdown:
		code = 0
	default:
	}
	agent.file.Close()
	verifier.file.Close()
	limit := time.After(stopTime)
	for agentOpen || verifierOpen {
		select {
		case <-agentDone:
			agentOpen = false
		case <-verifierDone:
			verifierOpen = false
		case <-limit:
			logf("commands still running %s after the end", stopTime)
			return code
		}
	}
	return code
}

func logEnd(c *conn, err error) {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
		logf("the %s's connection ended", c.role)
		return
	}
	logf("the %s's connection ended: %v", c.role, err)
}
